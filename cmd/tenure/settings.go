package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
)

const settingsHelp = `Each flag can be given as TENURE_NAME in the environment, with _ for -, or as a
key of the file that --config names, in YAML or JSON. A flag goes before the
environment, and the environment before the file.`

// Where a setting comes from, as GET /v1/config says it.
const (
	fromFlag = "flag"
	fromEnv  = "environment"
	fromFile = "file"
)

// notSettings are flags that neither the environment nor a file gives, or that
// have rules of their own for it.
var notSettings = map[string]bool{"help": true, "config": true, "print-config": true}

// addSettings lets the flags of a command come from the environment and a file.
func addSettings(cmd *cobra.Command) {
	cmd.Flags().String("config", "", "YAML or JSON file with settings by the names of flags (default $TENURE_CONFIG)")
}

// readSettings fills the flags that were not given from the environment and the
// file. It returns where each setting that is no default comes from.
func readSettings(cmd *cobra.Command) (map[string]string, error) {
	path, err := cmd.Flags().GetString("config")
	if err != nil {
		return nil, err
	}
	if path == "" {
		path = os.Getenv("TENURE_CONFIG")
	}
	file := map[string][]string{}
	if path != "" {
		if file, err = readSettingsFile(path); err != nil {
			return nil, err
		}
	}
	sources := map[string]string{}
	var errs []error
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		values, filed := file[f.Name]
		delete(file, f.Name)
		variable := "TENURE_" + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
		switch text, set := os.LookupEnv(variable); {
		case notSettings[f.Name]:
			if filed {
				errs = append(errs, failf(exitUsage, "%s: key %q: cannot be set in a file; use the flag or the environment", path, f.Name))
			}
		case f.Changed:
			sources[f.Name] = fromFlag
		case set:
			if err := cmd.Flags().Set(f.Name, text); err != nil {
				errs = append(errs, failf(exitUsage, "%s %q: %w", variable, text, reason(err)))
			}
			sources[f.Name] = fromEnv
		case filed:
			for _, v := range values {
				if err := cmd.Flags().Set(f.Name, v); err != nil {
					errs = append(errs, failf(exitUsage, "%s: key %q, value %q: %w", path, f.Name, v, reason(err)))
				}
			}
			sources[f.Name] = fromFile
		}
	})
	if values, filed := file["store"]; filed && cmd.Name() == "server" { // the one flag of the root that is a setting
		delete(file, "store")
		if _, set := os.LookupEnv("TENURE_STORE"); !set && !cmd.Flags().Changed("store") {
			if len(values) != 1 {
				return nil, failf(exitUsage, "%s: key \"store\": must be one store", path)
			}
			if err := cmd.Flags().Set("store", values[0]); err != nil {
				return nil, err
			}
		}
	}
	if len(errs) == 0 && len(file) > 0 {
		return nil, failf(exitUsage, "%s: no such setting: %q; \"%s --help\" has their names", path, slices.Sorted(maps.Keys(file)), cmd.CommandPath())
	}
	if len(errs) > 0 {
		return nil, errs[0] // one line; the next one after this is put right
	}
	return sources, nil
}

// reason is what is wrong with a value, without the words of a command line.
func reason(err error) error {
	if inner := errors.Unwrap(err); inner != nil {
		return inner
	}
	return err
}

// readSettingsFile reads a file of settings: a value, a list of values, or values
// by name, such as labels.
func readSettingsFile(path string) (map[string][]string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fileError("config", path, err)
	}
	var doc map[string]any
	if err := yaml.Unmarshal(text, &doc); err != nil {
		if _, shape := errors.AsType[*yaml.TypeError](err); shape {
			return nil, failf(exitUsage, "config %s: must be settings by name, each once, one a line, such as interval: 5s", path)
		}
		return nil, failf(exitUsage, "config %s: not YAML or JSON: %s", path, strings.TrimPrefix(err.Error(), "yaml: "))
	}
	all := map[string][]string{}
	for key, value := range doc {
		bad := func() (map[string][]string, error) {
			return nil, failf(exitUsage, "config %s: key %q: must be a text, a number, a truth value, a list of them, or values by name", path, key)
		}
		switch v := value.(type) {
		case []any:
			for _, each := range v {
				if !scalar(each) {
					return bad()
				}
				all[key] = append(all[key], fmt.Sprint(each))
			}
		case map[string]any:
			for _, name := range slices.Sorted(maps.Keys(v)) {
				if !scalar(v[name]) {
					return bad()
				}
				all[key] = append(all[key], name+"="+fmt.Sprint(v[name]))
			}
		default:
			if !scalar(value) {
				return bad()
			}
			all[key] = []string{fmt.Sprint(value)}
		}
	}
	return all, nil
}

func scalar(v any) bool {
	switch v.(type) {
	case string, bool, int, int64, uint64, float64:
		return true
	}
	return false
}
