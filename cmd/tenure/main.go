// Command tenure is the one binary.
package main

func main() {}
