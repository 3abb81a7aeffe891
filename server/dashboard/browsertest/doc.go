// Package browsertest has the tests of the dashboard in a real browser. It is a
// module of its own so that what drives the browser is no dependency of the server.
package browsertest
