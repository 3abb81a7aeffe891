module github.com/tenurehq/tenure/bench

go 1.26

require github.com/tenurehq/tenure v0.0.0

replace github.com/tenurehq/tenure => ..

require github.com/tenurehq/tenure/store/postgres v0.0.0

replace github.com/tenurehq/tenure/store/postgres => ../store/postgres
