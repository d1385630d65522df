# Runs a command in a mount namespace of its own, in which it may mount what FUSE serves, as far as the node lets an
# ordinary user have one: HPCSTACK_APART says so. Arguments: COMMAND...
if unshare --user --map-current-user --keep-caps --mount true 2>/dev/null; then
    export HPCSTACK_APART=yes
    exec unshare --user --map-current-user --keep-caps --mount "$@"
fi
exec "$@"
