# Shows how far `pip install` is: a line for each package, with the size of large downloads.
# Called by setup.sh with -v total=NUMBER; all that pip says is in its log.
/^(Collecting|Processing|Obtaining) / {
    count++
    name = $2
    sub(/^file:.*\//, "", name)
    sub("==", " ", name)
    printf "setup:   %d of %d: %s\n", count, total, name
    fflush()
}
/^ *Downloading .* MB\)/ {
    size = $0
    sub(/.*\(/, "", size)
    sub(/\).*/, "", size)
    if (size + 0 >= 20) {
        printf "setup:     downloading %s\n", size
        fflush()
    }
}
/^Installing collected packages/ {
    print "setup:   unpacking"
    fflush()
}
