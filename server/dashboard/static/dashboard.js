// Draws the charts of a page, and says when the page is no longer kept up to date.
"use strict";
(() => {
	const live = document.getElementById("live");
	const main = document.getElementById("main");
	const status = document.getElementById("status");
	const oldAfter = 8000; // ms without a turn: two ticks were missed, and some

	// What a person has unfolded stays so when the page is brought up to date.
	htmx.registerExtension("unfolded", {
		htmx_before_morph_attr: (element, detail) => !(element.tagName === "DETAILS" && detail.attrName === "open"),
	});

	// A page that shows an old state says so, in words.
	let fresh = Date.now();
	const judge = () => {
		const silent = Date.now() - fresh;
		const old = silent > oldAfter && !document.hidden;
		document.documentElement.classList.toggle("old", old);
		const text = old ? `Not up to date: no answer for ${Math.round(silent / 1000)} s` : "";
		if (status.textContent !== text) {
			status.textContent = text;
		}
	};
	if (live) {
		main.addEventListener("htmx:after:swap", () => { fresh = Date.now(); judge(); });
		document.addEventListener("visibilitychange", () => { if (!document.hidden) { fresh = Date.now(); } });
		setInterval(judge, 1000);
		live.addEventListener("tick", () => { for (const c of charts) { c.load(); } });
	}

	// colour reads a colour of the style sheet, which knows light from dark.
	const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
	const charts = [];

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
			const format = (v) => v == null ? "–" : data.unit === "s" ? seconds(v) : String(Math.round(v * 100) / 100);
			const series = data.series.map((s, i) => {
				const c = colour(`--line-${i % 4 + 1}`);
				const one = { label: s.label, stroke: s.kind === "points" ? (i === 2 ? colour("--critical") : colour("--good")) : s.kind === "area" ? colour("--line-3") : c, width: 1.5, value: (u, v) => format(v), points: { show: (u) => s.kind === "line" && u.data[0].length < 10, size: 5, fill: c } };
				if (s.kind === "area") {
					one.fill = `color-mix(in srgb, ${colour("--line-3")} 18%, transparent)`;
				}
				if (s.kind === "points") {
					one.paths = () => null;
					one.points = { show: true, size: 6, fill: one.stroke };
				}
				return one;
			});
			if (data.limit) {
				series.push({ label: data.limit.label, stroke: colour("--critical"), width: 1, dash: [6, 4], value: (u, v) => format(v), points: { show: false } });
			}
			this.plot?.destroy();
			const y = data.log
				? { distr: 3, range: (u, low, high) => [Math.max(10 ** Math.floor(Math.log10(low || 0.01)), 0.01), 10 ** Math.ceil(Math.log10((high || 1) * 1.05))] }
				: { range: (u, low, high) => [Math.min(0, low ?? 0), Math.max(high ?? 1, data.limit ? data.limit.value * 1.15 : 0, 0.001) * 1.05] };
			this.plot = new uPlot({
				width: this.box.clientWidth, height: this.height(),
				tzDate: (s) => uPlot.tzDate(new Date(s * 1000), "UTC"),
				series: [{ label: "UTC", value: (u, v) => v == null ? "–" : new Date(v * 1000).toISOString().slice(11, 19) }, ...series],
				scales: { y },
				axes: [
					{ stroke: quiet, grid, ticks: grid, font, space: 70, values: (u, at) => at.map((s) => new Date(s * 1000).toISOString().slice(11, 19)) },
					{ stroke: quiet, grid, ticks: grid, font, size: 52, values: (u, at) => at.map((v) => v == null ? "" : format(v)) },
				],
				cursor: { y: false },
				legend: { live: true },
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
