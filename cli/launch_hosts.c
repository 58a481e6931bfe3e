/* SPDX-License-Identifier: Apache-2.0 */
/* The hosts of `sluice launch`: lists, files, names. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/parse.h"
#include "cli/launch.h"

enum {
    FILE_BYTES_MAX = 1 << 20
};

static int is_host_character(char c)
{
    return isalnum((unsigned char)c) || c == '.' || c == '-' || c == '_';
}

/* A name starting with '-' would be an option of mpirun. */
static sl_status_t check_name(const char *where, const char *name, size_t n)
{
    sl_status_t status = SL_OK;
    size_t i = 0;

    while (i < n && is_host_character(name[i])) {
        i++;
    }
    if (n == 0 || n >= SL_LAUNCH_NAME_BYTES || i < n || name[0] == '-') {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "%s: '%.*s' is no host name; letters, digits, '.', '-' and "
                "'_' are allowed",
                where, (int)(n < 80 ? n : 80), name);
    }
out:
    return status;
}

/* A host that is named again has the slots of both. */
static sl_status_t add(const char *where, const char *name, size_t n_name,
                       const char *slots, sl_launch_hosts_t *hosts)
{
    sl_launch_host_t *host;
    int64_t n_slots = 1;
    sl_status_t status;
    int i;

    SL_TRY(status, check_name(where, name, n_name), out);
    if (slots != NULL &&
        sl_parse_int("slots", slots, 1, SL_LAUNCH_MAX_SLOTS, &n_slots) < 0) {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "%s: '%.32s' slots of host %.*s; 1 to %d are allowed", where,
                slots, (int)n_name, name, SL_LAUNCH_MAX_SLOTS);
    }
    for (i = 0; i < hosts->n; i++) {
        host = &hosts->hosts[i];
        if (strlen(host->name) == n_name &&
            memcmp(host->name, name, n_name) == 0) {
            break;
        }
    }
    if (i == hosts->n) {
        if (hosts->n == SL_LAUNCH_MAX_HOSTS) {
            SL_FAIL(status, SL_ERR_CONFIG, out, "%s: more than %d hosts", where,
                    SL_LAUNCH_MAX_HOSTS);
        }
        host = realloc(hosts->hosts, ((size_t)i + 1) * sizeof(*host));
        if (host == NULL) {
            SL_FAIL(status, SL_ERR_NO_MEMORY, out, "no memory for hosts");
        }
        hosts->hosts = host;
        hosts->n++;
        memset(&host[i], 0, sizeof(*host));
        memcpy(host[i].name, name, n_name);
    }
    host = &hosts->hosts[i];
    if (host->n_slots + n_slots > SL_LAUNCH_MAX_SLOTS) {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "%s: host %s has more than %d slots", where, host->name,
                SL_LAUNCH_MAX_SLOTS);
    }
    host->n_slots += (int)n_slots;
out:
    return status;
}

sl_status_t sl_launch_hosts_parse(const char *list, sl_launch_hosts_t *hosts)
{
    char entry[SL_LAUNCH_NAME_BYTES + 16];
    sl_status_t status = SL_OK;

    for (;;) {
        const size_t n = strcspn(list, ",");
        char *colon;

        (void)snprintf(entry, sizeof(entry), "%.*s",
                       (int)(n < sizeof(entry) ? n : sizeof(entry)), list);
        colon = strchr(entry, ':');
        SL_TRY(status,
               add("--hosts", entry,
                   colon == NULL ? strlen(entry) : (size_t)(colon - entry),
                   colon == NULL ? NULL : colon + 1, hosts),
               out);
        if (list[n] == '\0') {
            break;
        }
        list += n + 1;
    }
out:
    return status;
}

/* One line, without its comment: NAME, NAME:SLOTS or NAME slots=SLOTS. */
static sl_status_t add_line(const char *where, char *line,
                            sl_launch_hosts_t *hosts)
{
    char *rest = NULL;
    const char *name = strtok_r(line, " \t\r", &rest);
    const char *word = name == NULL ? NULL : strtok_r(NULL, " \t\r", &rest);
    const char *slots = NULL;
    const char *colon;
    sl_status_t status = SL_OK;
    size_t n_name;

    if (name == NULL) {
        return SL_OK;
    }
    n_name = strlen(name);
    colon = strchr(name, ':');
    if (colon != NULL) {
        slots = colon + 1;
        n_name = (size_t)(colon - name);
    }
    if (word != NULL) {
        if (slots != NULL || strncmp(word, "slots=", 6) != 0 ||
            strtok_r(NULL, " \t\r", &rest) != NULL) {
            SL_FAIL(status, SL_ERR_CONFIG, out,
                    "%s: a line is a host name, or `name slots=N`", where);
        }
        slots = word + 6;
    }
    status = add(where, name, n_name, slots, hosts);
out:
    return status;
}

sl_status_t sl_launch_hosts_read(const char *path, sl_launch_hosts_t *hosts)
{
    char where[512];
    char *text = NULL;
    char *line;
    size_t n_bytes;
    sl_status_t status;
    int n_lines = 0;

    SL_TRY(status, sl_file_read(path, FILE_BYTES_MAX, &text, &n_bytes), out);
    for (line = text; line != NULL;) {
        char *end = strchr(line, '\n');

        if (end != NULL) {
            *end++ = '\0';
        }
        line[strcspn(line, "#")] = '\0';
        (void)snprintf(where, sizeof(where), "%.480s:%d", path, ++n_lines);
        SL_TRY(status, add_line(where, line, hosts), out);
        line = end;
    }
    if (hosts->n == 0) {
        SL_FAIL(status, SL_ERR_CONFIG, out, "%s: there is no host in it", path);
    }
out:
    free(text);
    return status;
}

void sl_launch_hosts_cleanup(sl_launch_hosts_t *hosts)
{
    free(hosts->hosts);
    memset(hosts, 0, sizeof(*hosts));
}

int sl_launch_hosts_slots(const sl_launch_hosts_t *hosts)
{
    int n = 0;
    int i;

    for (i = 0; i < hosts->n; i++) {
        n += hosts->hosts[i].is_dropped ? 0 : hosts->hosts[i].n_slots;
    }
    return n;
}

static void own_name(char name[SL_LAUNCH_NAME_BYTES])
{
    if (gethostname(name, SL_LAUNCH_NAME_BYTES) != 0) {
        name[0] = '\0';
    }
    name[SL_LAUNCH_NAME_BYTES - 1] = '\0';
}

/* Equal, or one is the other's short form. */
static int is_same_host(const char *a, const char *b)
{
    const size_t n_a = strcspn(a, ".");
    const size_t n_b = strcspn(b, ".");

    if (strcmp(a, b) == 0) {
        return 1;
    }
    if (a[n_a] != '\0' && b[n_b] != '\0') {
        return 0; /* two full names, or two addresses */
    }
    return n_a > 0 && n_a == n_b && memcmp(a, b, n_a) == 0;
}

int sl_launch_host_is_local(const char *name)
{
    char own[SL_LAUNCH_NAME_BYTES];

    own_name(own);
    return strcmp(name, "localhost") == 0 || strcmp(name, "127.0.0.1") == 0 ||
           (own[0] != '\0' && is_same_host(name, own));
}

int sl_launch_hosts_find(const sl_launch_hosts_t *hosts, const char *name)
{
    const int is_local = sl_launch_host_is_local(name);
    int i;

    for (i = 0; i < hosts->n; i++) {
        if (is_same_host(hosts->hosts[i].name, name) ||
            (is_local && sl_launch_host_is_local(hosts->hosts[i].name))) {
            return i;
        }
    }
    return -1;
}

char *sl_launch_hosts_text(const sl_launch_hosts_t *hosts, int n_ranks)
{
    const size_t n_bytes = (size_t)hosts->n * (SL_LAUNCH_NAME_BYTES + 16) + 1;
    char *text = malloc(n_bytes);
    size_t n = 0;
    int i;

    if (text == NULL) {
        return NULL;
    }
    text[0] = '\0';
    for (i = 0; i < hosts->n && n_ranks > 0; i++) {
        const sl_launch_host_t *host = &hosts->hosts[i];
        const int n_here = host->n_slots < n_ranks ? host->n_slots : n_ranks;

        if (!host->is_dropped) {
            n += (size_t)snprintf(text + n, n_bytes - n, "%s%s:%d",
                                  n > 0 ? "," : "", host->name, n_here);
            n_ranks -= n_here;
        }
    }
    return text;
}
