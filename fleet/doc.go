// Package fleet holds the rules by which a fleet of nodes is run: who may get
// new work, where it is placed, when a drain is done, when the observer should
// doubt itself, and whose work may move.
//
// # Promised
//
// A node has four independent facts, which are never merged into one: liveness
// (is it heard), lease (may it act), intent (what operators want of it) and
// readiness (what it says of itself). A node may get new work if all four are
// good and the request fits. Otherwise [Exclusions] returns the complete list
// of reasons, each with its code, since when it holds, and what would clear it
// (P10).
//
// Silence moves nothing. Only a lease that is over by the store's clock lets
// work move ([JudgeTakeover]), and only while no [Brake] holds it back.
//
// # Not promised
//
// The rules judge a snapshot. What they allow is committed by one conditional
// statement in the registry, which may refuse it because the facts have changed.
//
// # How
//
// Everything here is pure: no I/O, no goroutine, no clock. Instants and ages are
// arguments.
package fleet
