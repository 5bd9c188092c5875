#!/bin/sh
# compare_losses.sh REFERENCE OTHER...: loss logs of two epochs, one loss a line. Sums taken in
# another order drift apart with time, so the first 20 steps must agree within 1e-5 each, and epoch
# 1 within 5e-3 in the mean.
set -eu
reference=$1
shift
for other; do
    paste "$reference" "$other" | awk -v name="$other" '
        NF != 2 { print name ": has another number of steps"; failed = 1; exit 1 }
        ($1 $2) !~ /^[0-9.e+-]+$/ { print name ": no number: " $0; failed = 1; exit 1 }
        { first[NR] = $1; second[NR] = $2 }
        function distance(a, b) { return a > b ? a - b : b - a }
        END {
            if (failed) exit 1
            if (NR < 40) { print name ": too short to compare"; exit 1 }
            for (i = 1; i <= 20; ++i) {
                d = distance(first[i], second[i])
                if (d > worst) worst = d
            }
            epoch = NR / 2
            for (i = 1; i <= epoch; ++i) { sum += first[i]; other_sum += second[i] }
            d = distance(sum, other_sum) / epoch
            printf "%s: %d steps; largest difference of the first 20 %.2g, ", name, NR, worst
            printf "of the mean of epoch 1 %.2g\n", d
            exit !(worst <= 1e-5 && d <= 5e-3)
        }'
done
