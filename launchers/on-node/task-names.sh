# Needs left-out.sh before it. Puts `--env NAME` before the arguments for each variable of this shell that is not left out.
for _hpcstack_name in $(env -0 | tr '\n\0' ' \n' | sed -n 's/^\([A-Za-z_][A-Za-z0-9_]*\)=.*/\1/p'); do
    case $_hpcstack_left in
    *" $_hpcstack_name "*) ;;
    *) set -- --env "$_hpcstack_name" "$@" ;;
    esac
done
