# Proves that this task is in the image: a slurmd that does not load Pyxis ignores --container-image and starts the task
# on the host (NVIDIA/pyxis 79). $1: the stack; $2: the checksum of its recipe, or nothing; then the command.
stack=$1 recipe=$2
shift 2
said=
if [ -r /opt/hpcstack/stack.json ]; then
    while IFS= read -r line; do said=$said$line; done </opt/hpcstack/stack.json
fi
case $said in
*"\"spec_sha256\": \"$recipe"*"\"stack\": \"$stack\""*) exec "$@" ;;
esac
echo "hpcstack: ${SLURMD_NODENAME:-$(uname -n)}: this task is not in the image of $stack: Slurm took --container-image here, and" \
    "slurmd on this node did not. Pyxis is missing in its plugstack.conf, or slurmd was not started again; tell the site's administrators" >&2
exit 125
