package main

import (
	"regexp"
	"strings"
)

var (
	// origin is where in the program a message was made, which helps nobody who
	// only runs it.
	origin = regexp.MustCompile(`(^|: )(?:(?:tenure|acquire|store|sqlite|postgres|api|server|agent|fleet|registry|minder|publish|fence): )+`)

	// numberError is what package strconv says.
	numberError = regexp.MustCompile(`strconv\.\w+: parsing "(?:\\.|[^"\\])*": (?:invalid syntax|value out of range)`)

	// A password in a URL reaches up to the last @ of the word or, in a quoted
	// argument, which may hold spaces and may have been cut short, up to the @ or
	// the cut.
	quotedPassword    = regexp.MustCompile(`("[A-Za-z][\w+.-]*://[^\s/@:"]*):(?:\\.|[^"\\])*(@|…")`)
	passwordInURL     = regexp.MustCompile(`([A-Za-z][\w+.-]*://[^\s/@:"]*):\S*@`)
	passwordParameter = regexp.MustCompile(`(?i)(password=)[^&\s"]*`)
)

// words makes of an error's text what people read: one line, without the parts
// that only say where in the program it arose, and without passwords.
func words(s string) string {
	s = numberError.ReplaceAllStringFunc(redact(oneLine(s)), func(m string) string {
		switch {
		case strings.HasSuffix(m, "out of range"):
			return "is out of range"
		case strings.HasPrefix(m, "strconv.ParseBool"):
			return "must be true or false"
		case strings.HasPrefix(m, "strconv.ParseFloat"):
			return "must be a number"
		}
		return "must be a whole number"
	})
	return origin.ReplaceAllString(s, "$1")
}

// oneLine joins the lines of a message from elsewhere.
func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// redact hides the passwords in the URLs in s. It rather hides too much.
func redact(s string) string {
	s = quotedPassword.ReplaceAllString(s, "$1:xxxxx$2")
	s = passwordInURL.ReplaceAllString(s, "$1:xxxxx@")
	return passwordParameter.ReplaceAllString(s, "${1}xxxxx")
}

// plain makes a message fit to follow the name of the program: words with
// nothing that acts on a terminal.
func plain(msg string) string { return escape(words(msg)) }

var shellSafe = regexp.MustCompile(`^[\w@%+=:,./-]+$`)

// shellWord returns s as a word of a shell command.
func shellWord(s string) string {
	if shellSafe.MatchString(s) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
