// Keeps a page up to date, says when it is not, and draws its charts.
"use strict";
(() => {
	const live = document.getElementById("live");
	const main = document.getElementById("main");
	const status = document.getElementById("status");
	const toldAfter = 6000; // ms without a turn: two ticks were missed
	const askEvery = 5000; // ms between two looks of a page that is told of no turns
	const joinEvery = 15000; // ms, and some, until it asks for the stream again
	const oldAfter = 9000; // ms without an answer

	// What a person has unfolded stays so when the page is brought up to date.
	htmx.registerExtension("unfolded", {
		htmx_before_morph_attr: (element, detail) => !(element.tagName === "DETAILS" && detail.attrName === "open"),
	});

	// A stream of the server tells the page of each turn. Where there is none to be had,
	// since too many have one or since something on the way holds it back, the page
	// asks by itself, says so, and tries to get one again.
	let source = null;
	let told = Date.now(); // of a turn
	let asked = 0;
	let again = 0; // when to ask for the stream
	const turn = () => {
		asked = Date.now();
		htmx.trigger(live, "tick");
		for (const c of charts) {
			c.load();
		}
	};
	const join = () => {
		again = Date.now() + joinEvery * (1 + Math.random());
		const mine = new EventSource("/ui/live");
		source = mine;
		mine.addEventListener("tick", () => { told = Date.now(); turn(); });
		mine.addEventListener("error", () => {
			if (mine === source && mine.readyState === EventSource.CLOSED) { // refused; else it goes on trying
				told = 0;
			}
		});
	};

	// A page that shows an old state says so, in words.
	let fresh = Date.now();
	const judge = () => {
		const now = Date.now();
		const slow = now - told > toldAfter;
		if (slow && now - asked >= askEvery) {
			turn();
		}
		if (source.readyState === EventSource.CLOSED && now >= again) {
			join();
		}
		const old = now - fresh > oldAfter;
		document.documentElement.classList.toggle("old", old);
		document.documentElement.classList.toggle("slow", slow && !old);
		let text = "";
		if (old) {
			text = `Not up to date: no answer for ${Math.round((now - fresh) / 1000)} s`;
		} else if (slow) {
			text = `No live updates to be had: refreshed every ${askEvery / 1000} s`;
		}
		if (status.textContent !== text) {
			status.textContent = text;
		}
	};
	const watch = () => {
		if (document.hidden) { // and leaves its place to others
			source?.close();
			return;
		}
		fresh = told = Date.now();
		join();
	};
	if (live) {
		main.addEventListener("htmx:after:swap", () => { fresh = Date.now(); });
		document.addEventListener("visibilitychange", watch);
		watch();
		setInterval(() => { if (!document.hidden) { judge(); } }, 1000);
	}

	// colour reads a colour of the style sheet, which knows light from dark.
	const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
	const charts = [];
	const steps = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 86400]; // s, of the axis of time

	class Chart {
		constructor(box) {
			this.box = box;
			this.plot = null;
			this.text = "";
			this.busy = false;
			this.load();
			new ResizeObserver(() => {
				if (this.plot && this.plot.width !== box.clientWidth) {
					this.plot.setSize({ width: box.clientWidth, height: this.height() });
				}
			}).observe(box);
		}

		height() { return 180; }

		async load() {
			if (this.busy || document.hidden) {
				return;
			}
			this.busy = true;
			try {
				const response = await fetch(this.box.dataset.src, { headers: { Accept: "application/json" } });
				if (response.ok) {
					const text = await response.text();
					if (text !== this.text) {
						this.text = text;
						this.draw(JSON.parse(text));
					}
				}
			} catch { // the page says itself that it is not up to date
			} finally {
				this.busy = false;
			}
		}

		draw(data) {
			if (!data.x || data.x.length === 0) {
				return;
			}
			const columns = [data.x, ...data.series.map((s) => s.values)];
			if (data.limit) {
				columns.push(data.x.map(() => data.limit.value));
			}
			if (this.plot && this.plot.series.length === columns.length) {
				this.plot.setData(columns);
				return;
			}
			this.build(data, columns);
		}

		build(data, columns) {
			const quiet = colour("--quiet");
			const grid = { stroke: colour("--line"), width: 1 };
			const font = "12px system-ui, sans-serif";
			const format = (v) => data.unit === "s" ? seconds(v) : String(Math.round(v * 100) / 100);
			const clock = (v) => new Date(v * 1000).toISOString().slice(11, 19);
			// The legend tells the values under the cursor, and the last ones without it.
			const at = (u, i) => i ?? u.data[0].length - 1;
			const value = (u, v, s, i) => { const one = u.data[s][at(u, i)]; return one == null ? "none" : format(one); };
			const points = (u, v, s, i) => i == null ? String(u.data[s].filter((one) => one != null).length) : v == null ? "not here" : "here";
			const series = data.series.map((s, i) => {
				const c = colour(`--line-${s.kind === "area" || data.series.length === 1 ? 3 : s.kind === "points" ? [4, 1][i - 1] : i % 4 + 1}`);
				const one = { label: s.label, stroke: c, width: 1.5, value, points: { show: (u) => s.kind === "line" && u.data[0].length < 10, size: 5, fill: c } };
				if (s.kind === "area") {
					one.fill = `color-mix(in srgb, ${c} 18%, transparent)`;
				}
				if (s.kind === "points") {
					one.value = points;
					one.paths = () => null;
					one.points = { show: true, size: 6, fill: c };
				}
				return one;
			});
			if (data.limit) {
				series.push({ label: data.limit.label, stroke: colour("--ink"), width: 1, dash: [6, 4], value, points: { show: false } });
			}
			this.plot?.destroy();
			const y = data.log
				? { distr: 3, range: (u, low, high) => [Math.max(10 ** Math.floor(Math.log10(low || 0.01)), 0.01), 10 ** Math.ceil(Math.log10((high || 1) * 1.05))] }
				: { range: (u, low, high) => [Math.min(0, low ?? 0), Math.max(high ?? 1, data.limit ? data.limit.value * 1.15 : 0, 0.001) * 1.05] };
			this.plot = new uPlot({
				width: this.box.clientWidth, height: this.height(),
				tzDate: (s) => uPlot.tzDate(new Date(s * 1000), "UTC"),
				series: [{ label: "UTC", value: (u, v, s, i) => clock(u.data[0][at(u, i)]) }, ...series],
				scales: { y },
				axes: [
					{ stroke: quiet, grid, ticks: grid, font, space: 70, incrs: steps, values: (u, all) => all.map(clock) },
					{ stroke: quiet, grid, ticks: grid, font, size: 62, values: (u, all) => all.map((v) => v == null ? "" : format(v)) },
				],
				cursor: { y: false },
				legend: { live: true, markers: { dash: (u, i) => u.series[i].dash ? "dashed" : "solid" } },
			}, columns, this.box);
		}

		repaint() {
			const text = this.text;
			this.plot?.destroy();
			this.plot = null;
			if (text) {
				this.draw(JSON.parse(text));
			}
		}
	}

	// seconds writes a duration for people.
	const seconds = (v) => {
		if (v < 0.01) { return `${Math.round(v * 1e4) / 10}ms`; }
		if (v < 1) { return `${Math.round(v * 1000)}ms`; }
		if (v < 100) { return `${Math.round(v * 10) / 10}s`; }
		if (v < 5400) { return `${Math.round(v / 60)}m`; }
		if (v < 172800) { return `${Math.round(v / 3600)}h`; }
		return `${Math.round(v / 86400)}d`;
	};

	// find draws the charts that the page has now, and forgets those that are gone.
	const find = () => {
		for (let i = charts.length - 1; i >= 0; i--) {
			if (!charts[i].box.isConnected) {
				charts[i].plot?.destroy();
				charts.splice(i, 1);
			}
		}
		for (const box of document.querySelectorAll(".chart")) {
			if (!charts.some((c) => c.box === box)) {
				charts.push(new Chart(box));
			}
		}
	};
	find();
	main.addEventListener("htmx:after:swap", find);
	matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { for (const c of charts) { c.repaint(); } });
})();
