#!/usr/bin/env bash
# cpu_seconds.sh FILE COMMAND...: runs the command, and adds the processor seconds of it and of its children to the file.
file=$1
shift
mkdir -p "$(dirname "$file")"
"$@"
status=$?
# The second line of `times` has the children's user and system time, such as 0m1.250s. In a pipe it would be another shell's.
times > "$file.times"
sed -n 2p "$file.times" >> "$file"
rm "$file.times"
exit $status
