module unwind.dev/bench/echo

go 1.22
