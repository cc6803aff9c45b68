#!/usr/bin/env bash
# One HTTP request with nothing but bash, for images that have no curl:
#
#   http.sh [-i] METHOD HOST:PORT/PATH [<BODY]
#
# Prints the answer's body, with -i its head before. Succeeds if the status is 2xx.
# Only POST and PUT read a body, of JSON. There is no limit of time: use `timeout`.
set -euo pipefail

show_head=
if [ "$1" = -i ]; then
    show_head=1
    shift
fi
method=$1
authority=${2%%/*}
path=/${2#*/}
body=
length=
case $method in
    POST | PUT)
        body=$(cat)
        # In bytes, whatever the locale counts as a letter.
        length=$(printf %s "$body" | wc -c)
        ;;
esac

exec 3<>"/dev/tcp/${authority%:*}/${authority##*:}"
# With 1.0 the answer ends with the connection, and is never chunked.
printf '%s %s HTTP/1.0\r\nhost: %s\r\n' "$method" "$path" "$authority" >&3
if [ -n "$length" ]; then
    printf 'content-type: application/json\r\ncontent-length: %s\r\n' "$length" >&3
fi
printf '\r\n%s' "$body" >&3

IFS= read -r status <&3
head=$status
while IFS= read -r line <&3 && [ "$line" != $'\r' ]; do head+=$'\n'$line; done
if [ -n "$show_head" ]; then printf '%s\n\n' "${head//$'\r'/}"; fi
cat <&3
[[ $status =~ ^HTTP/1\.[01]\ 2 ]]
