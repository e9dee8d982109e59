# Instructions of the loops of the functions counted_*, from `objdump -d`: for each loop that
# holds no other, and for the rest of the loop around it (once a piece: conversion, scales, sums).
function report(    i, j, n, inner, products, p, total, outer) {
    for (i = 1; i <= length_; i++) {
        if (!(target[i] in at) || at[target[i]] > i) continue
        n = i - at[target[i]] + 1
        products = 0
        for (j = at[target[i]]; j <= i; j++) products += per[j]
        if (products == 0) continue
        inner = 1
        for (j = at[target[i]]; j < i; j++)
            if (target[j] in at && at[target[j]] <= j && at[target[j]] >= at[target[i]]) {
                inner = 0
                outer = n - (j - at[target[j]] + 1)
            }
        if (inner) {
            printf "%-24s inner loop %4d instructions, %5.0f %s: %6.1f per 1024\n",
                name, n, products, unit, 1024 * n / products
        } else {
            printf "%-24s and %d around it, once a piece\n", name, outer
        }
    }
}
/^[0-9a-f]+ <.*>:$/ {
    if (counting) report()
    name = $2; gsub(/[<>:]/, "", name)
    counting = name ~ /^counted_/
    sub(/^counted_/, "", name)
    # Names of loops of bf16 parts: cut_PARTS, bfmmla_PARTSxPARTS (of a weight by an x).
    split(name, part, /[_x]/)
    unit = name ~ /^cut_/ ? "weights" : "multiply-accumulates"
    length_ = 0; delete at; delete target; delete per
    next
}
counting && /^ *[0-9a-f]+:/ {
    length_++
    address = $1; sub(/:/, "", address)
    at[address] = length_
    if ($2 ~ /^(b\..*|b|cbn?z|tbn?z)$/)
        for (field = 3; field <= NF; field++) if ($field ~ /^[0-9a-f]+$/) target[length_] = $field
    # A product by the lane of a token; sums of x multiply whole registers by ones.
    if ($2 == "sdot" && $0 ~ /4b\[/) per[length_] = 16
    else if ($2 ~ /^(us|s)mmla$/) per[length_] = 32
    else if ($2 ~ /^s(mull|mlal)2?$/) per[length_] = 8
    else if ($2 == "bfmmla") per[length_] = 16 / (part[2] * part[3])
    else if (name ~ /^cut_/ && $2 == "trn2") per[length_] = 8 / part[2]
    else if (name == "fmla" && $2 == "fmla") per[length_] = 4
}
END { if (counting) report() }
