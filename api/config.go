package api

// ServerConfig answers GET config: what the server runs with and what follows from it.
type ServerConfig struct {
	Server   string    `json:"server"` // this replica
	Version  string    `json:"version"`
	Settings []Setting `json:"settings"`
	Derived  []Setting `json:"derived"`
}

// Setting is one value in force.
type Setting struct {
	Name  string `json:"name"`
	Value string `json:"value"`
	// Source says where it comes from: default, file, environment or flag; "" if
	// it was derived.
	Source string `json:"source,omitempty"`
	Text   string `json:"text,omitempty"`
}
