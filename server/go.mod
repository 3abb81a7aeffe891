module github.com/tenurehq/tenure/server

go 1.26.0

require github.com/tenurehq/tenure v0.0.0

replace github.com/tenurehq/tenure => ..

replace github.com/tenurehq/tenure/store/postgres => ../store/postgres
