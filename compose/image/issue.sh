#!/usr/bin/env bash
# Certifies the nodes of a grid whose containers share no files, each given by the arguments
# of `kvgrid-certs issue PKI` as one text, with its id last:
#
#   issue.sh 'relay --site fra --region eu --id fra-1' 'edge --region eu --id eu-1'
#
# The authority is made in /pki, unless one is there. A node finds in /nodes/ID what
# [identity] needs: node.pem, node-key.pem, ca.pem, grid.key. Keys belong to the nodes' user,
# and nobody else can read them. What is there is kept, until the certificate has a month left.
# Runs as root, to give files away (CAP_CHOWN); nothing else of root's is needed.
set -euo pipefail

owner=10001:10001
pki=/pki
# Certificates hold 90 days.
renew_after_days=60

# give FROM TO: a copy for the nodes' user alone, in place at once.
give() {
    (umask 077 && cp "$1" "$2.new")
    chown "$owner" "$2.new"
    mv -f "$2.new" "$2"
}

# ca.pem is written last: without it, whatever is there is the rest of an interrupted run.
if [ ! -e $pki/ca.pem ]; then
    kvgrid-certs init $pki --trust-domain "${TRUST_DOMAIN:-grid.example}" --force
fi
for node in "$@"; do
    id=${node##* }
    dir=/nodes/$id
    # Given last, so if it is there, all is.
    if [ -n "$(find "$dir" -name node.pem -mtime "-$renew_after_days")" ] &&
        cmp -s $pki/ca.pem "$dir/ca.pem"; then
        echo "$id has its certificate"
        continue
    fi
    read -ra arguments <<<"$node"
    kvgrid-certs issue $pki "${arguments[@]}" --force
    cp $pki/ca.pem "$dir/ca.pem"
    give $pki/grid.key "$dir/grid.key"
    give "$pki/$id-key.pem" "$dir/node-key.pem"
    give "$pki/$id.pem" "$dir/node.pem"
done
