# shellcheck shell=bash
# Accounting: a private MariaDB and slurmdbd. Without them the cluster runs, and sacct has nothing to say.

DATABASE_PORT=8306 # below 10000: launches meet at ports from there on
DATABASE_SOCKET=$RUN/mariadb/socket

has_accounting() { command -v slurmdbd >/dev/null && command -v mariadbd >/dev/null; }

accounting_up() {
    if ! has_accounting; then
        echo "  accounting: slurmdbd or mariadb-server is not installed; going on without"
        return 0
    fi
    mkdir -p "$RUN/mariadb"
    chown mysql: "$RUN/mariadb" "$TESTBED/state/mariadb"
    if [ ! -d "$TESTBED/state/mariadb/mysql" ]; then
        mariadb-install-db --user=mysql --datadir="$TESTBED/state/mariadb" --auth-root-authentication-method=socket \
            --skip-test-db >"$LOG/mariadb-install.log" 2>&1 ||
            fail_by_log "the accounting database could not be made" "$LOG/mariadb-install.log"
    fi
    start mariadb mariadbd --no-defaults --user=mysql --datadir="$TESTBED/state/mariadb" --socket="$DATABASE_SOCKET" \
        --bind-address=127.0.0.1 --port="$DATABASE_PORT" --pid-file="$RUN/mariadb/pid" --innodb-buffer-pool-size=64M
    await 60 mariadb "$LOG/mariadb.log" mariadb-admin --no-defaults --socket="$DATABASE_SOCKET" ping
    write_slurmdbd_conf
    start slurmdbd env SLURM_CONF="$ETC/slurm.conf" slurmdbd -D # its slurmdbd.conf lies beside slurm.conf
    await 60 slurmdbd "$LOG/slurmdbd.log" env SLURM_CONF="$ETC/slurm.conf" sacctmgr -n list cluster
}

write_slurmdbd_conf() {
    local password
    if ! grep -qsx "StoragePort=$DATABASE_PORT" "$ETC/slurmdbd.conf"; then
        password=$(head -c 24 /dev/urandom | base64 | tr -dc A-Za-z0-9)
        (
            umask 077
            cat >"$ETC/slurmdbd.conf.part" <<CONF
AuthType=auth/munge
AuthInfo=socket=$MUNGE_SOCKET
DbdHost=localhost
DbdPort=8819
SlurmUser=root
LogFile=$LOG/slurmdbd.log
PidFile=$RUN/slurmdbd.daemon.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort=$DATABASE_PORT
StorageUser=slurm
StoragePass=$password
StorageLoc=slurm_acct_db
CONF
        )
        mv "$ETC/slurmdbd.conf.part" "$ETC/slurmdbd.conf"
    fi
    password=$(sed -n 's/^StoragePass=//p' "$ETC/slurmdbd.conf")
    # The database is made here. Left to slurmdbd, it ends with MariaDB's client library 3.4.10 (Debian 13): "maximum
    # allowed number of columns (=0)". Probably as that loses its own default after a connection that failed.
    mariadb --no-defaults --socket="$DATABASE_SOCKET" <<SQL
CREATE DATABASE IF NOT EXISTS slurm_acct_db;
CREATE USER IF NOT EXISTS 'slurm'@'localhost' IDENTIFIED BY '$password';
ALTER USER 'slurm'@'localhost' IDENTIFIED BY '$password';
GRANT ALL ON slurm_acct_db.* TO 'slurm'@'localhost';
SQL
}

accounting_down() { stop slurmdbd; stop mariadb; }
accounting_status() {
    if ! has_accounting; then echo "accounting: not installed"; return 0; fi
    report mariadb "$LOG/mariadb.log" && report slurmdbd "$LOG/slurmdbd.log"
}
