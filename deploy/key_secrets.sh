#!/usr/bin/env bash
# Kubernetes Secrets from key directories that `rlctl keygen` made, one a directory, on standard output:
#
#   rlctl keygen keys --node head --node reserved-1 --node preemptible --node laptop
#   deploy/key_secrets.sh keys head reserved-1 preemptible | kubectl apply -n gleaner -f -
#
# A key directory becomes the Secret gleaner-keys-NAME: node.public, node.secret, and each trusted/NAME.public as
# trusted.NAME.public, for keys of a Secret hold no slash.
set -euo pipefail

if [ $# -lt 2 ]; then
    sed -n '2,8s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi
keys=$1
shift
for node in "$@"; do
    [ -f "$keys/$node/node.secret" ] || { echo "key_secrets.sh: $keys/$node: no key directory" >&2; exit 2; }
    printf -- '---\napiVersion: v1\nkind: Secret\ntype: Opaque\nmetadata:\n  name: gleaner-keys-%s\ndata:\n' "$node"
    printf '  node.public: %s\n' "$(base64 -w0 < "$keys/$node/node.public")"
    printf '  node.secret: %s\n' "$(base64 -w0 < "$keys/$node/node.secret")"
    for file in "$keys/$node/trusted/"*.public; do
        printf '  trusted.%s: %s\n' "$(basename "$file")" "$(base64 -w0 < "$file")"
    done
done
