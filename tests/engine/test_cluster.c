/* SPDX-License-Identifier: Apache-2.0 */
/* Cluster files: what is read, what is refused and where, and random ones. */
#include "base/log.h"
#include "base/parse.h"
#include "tests/engine/sim_bed.h"

static sl_status_t read_text(const char *text, sl_cluster_t *cluster)
{
    sl_yaml_t *yaml = NULL;
    sl_status_t status =
        sl_yaml_parse("cluster.yaml", text, strlen(text), &yaml);

    if (status >= 0) {
        status = sl_cluster_read(yaml, cluster);
    }
    sl_yaml_close(yaml);
    return status;
}

static void a_whole_file_is_read(void **state)
{
    sl_cluster_t cluster;
    int host;

    (void)state;
    sl_assert_ok(read_text("name: two racks\n"
                           "hosts:\n"
                           "  - count: 3\n"
                           "    devices: 2\n"
                           "    speed: 0.5\n"
                           "    memory: 2GiB\n"
                           "    memory_bandwidth: 42GB\n"
                           "    link: {latency_us: 1.5, bandwidth: 20GB}\n"
                           "    network: {latency_us: 30, bandwidth: 1GB, "
                           "message_us: 2}\n"
                           "  - devices: 4\n",
                           &cluster));
    assert_string_equal(cluster.name, "two racks");
    assert_int_equal(cluster.n_groups, 2);
    assert_int_equal(cluster.n_hosts, 4);
    assert_int_equal(cluster.n_devices, 10);
    assert_true(cluster.groups[0].memory_bytes == (uint64_t)2 << 30);
    assert_us(cluster.groups[0].speed, 0.5);
    assert_us(cluster.groups[0].memory_bytes_per_us, 42e3);
    assert_us(cluster.groups[0].link.latency_us, 1.5);
    assert_us(cluster.groups[0].link.bytes_per_us, 20e3);
    assert_us(cluster.groups[0].network.bytes_per_us, 1e3);
    assert_us(cluster.groups[0].network.message_us, 2.0);
    assert_us(cluster.groups[1].speed, 1.0);
    assert_us(cluster.groups[1].link.bytes_per_us, 0.0);
    assert_ptr_equal(sl_cluster_device(&cluster, 0, &host), &cluster.groups[0]);
    assert_int_equal(host, 0);
    assert_ptr_equal(sl_cluster_device(&cluster, 5, &host), &cluster.groups[0]);
    assert_int_equal(host, 2);
    assert_ptr_equal(sl_cluster_device(&cluster, 9, &host), &cluster.groups[1]);
    assert_int_equal(host, 3);
}

static void wrong_files_are_refused_with_their_place(void **state)
{
    static const struct {
        const char *text, *place, *part;
    } cases[] = {
        {"", "cluster.yaml:", "has `hosts:`"},
        {"hosts: []\n", "cluster.yaml:1:8", "1 to 64 entries"},
        {"hosts: 4\n", "cluster.yaml:1:8", "a list"},
        {"hosts: [4]\n", "cluster.yaml:1:9", "is a mapping"},
        {"hosts:\n  - count: 0\n", "cluster.yaml:2:12", "count"},
        {"hosts:\n  - count: 1.5\n", "cluster.yaml:2:12", "count"},
        {"hosts:\n  - devices: -1\n", "cluster.yaml:2:14", "devices"},
        {"hosts:\n  - {count: 65536, devices: 2}\n", "cluster.yaml:2:5",
         "131072 devices"},
        {"hosts:\n  - speed: 0\n", "cluster.yaml:2:12", "speed"},
        {"hosts:\n  - speed: .nan\n", "cluster.yaml:2:12", "speed"},
        {"hosts:\n  - memory: 2G\n", "cluster.yaml:2:13", "2G"},
        {"hosts:\n  - link: fast\n", "cluster.yaml:2:11", "link"},
        {"hosts:\n  - link: {latency_us: -1}\n", "cluster.yaml:2:24",
         "latency_us"},
        {"hosts:\n  - network: {bandwidth: 12}\n", "cluster.yaml:2:26",
         "bytes a second"},
        {"hosts:\n  - network: {bandwith: 12GB}\n",
         "cluster.yaml:2:", "bandwidth"},
        {"hosts:\n  - device: 3\n", "cluster.yaml:2:", "devices"},
        {"racks: 3\nhosts: [{}]\n", "cluster.yaml:1:", "racks"},
    };
    sl_cluster_t cluster = {.n_hosts = 77};
    size_t i;

    (void)state;
    for (i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        sl_assert_status(read_text(cases[i].text, &cluster), SL_ERR_CONFIG);
        sl_assert_contains(sl_last_error(), cases[i].place);
        sl_assert_contains(sl_last_error(), cases[i].part);
        assert_int_equal(cluster.n_hosts, 77);
    }
    sl_assert_status(sl_cluster_open("/nowhere/cluster.yaml", &cluster),
                     SL_ERR_IO);
}

/* ---- random files ---- */

static void drop(void *ctx, sl_log_level_t level, const char *text)
{
    (void)ctx;
    (void)level;
    (void)text;
}

static size_t random_text(uint64_t seed, char *text, size_t room)
{
    static const char *const pieces[] = {"hosts:",
                                         "\n  - ",
                                         "\n    ",
                                         "count: ",
                                         "devices: ",
                                         "speed: ",
                                         "memory: ",
                                         "link: ",
                                         "network: ",
                                         "latency_us: ",
                                         "bandwidth:",
                                         " ",
                                         "1",
                                         "3",
                                         "0",
                                         "-1",
                                         "1e9",
                                         "2GiB",
                                         "25GB",
                                         "1B",
                                         "{",
                                         "}",
                                         "[",
                                         "]",
                                         ", ",
                                         "\n",
                                         "~",
                                         "'4'",
                                         "message_us:",
                                         "0.5",
                                         "name: x\n",
                                         "99999999999",
                                         "hosts:\n  - devices: 2\n    "};
    const int n_pieces = (int)(sizeof(pieces) / sizeof(*pieces));
    uint64_t n_drawn = 0;
    size_t n = 0;

    if (seed % 2 == 0) {
        n = (size_t)snprintf(text, room, "hosts:\n  - devices: 2\n    ");
    }
    while (n + 64 < room && bed_draw(seed, &n_drawn, 20) != 0) {
        const char *piece = pieces[bed_draw(seed, &n_drawn, n_pieces)];

        memcpy(text + n, piece, strlen(piece));
        n += strlen(piece);
    }
    return n;
}

static int fuzz_setup(void **state)
{
    const int failed = sl_test_setup(state);

    sl_log_sink_set(drop, NULL);
    return failed;
}

/* Whatever is accepted can be simulated. */
static void random_files_are_refused_or_simulated(void **state)
{
    static char text[1024];
    static bed_t bed;
    uint64_t seed;
    int n_good = 0;

    (void)state;
    for (seed = 0; seed < 30000; seed++) {
        const size_t n = random_text(seed, text, sizeof(text));
        sl_yaml_t *yaml = NULL;
        sl_cluster_t cluster;
        sl_status_t status = sl_yaml_parse("fuzz", text, n, &yaml);

        if (status >= 0) {
            status = sl_cluster_read(yaml, &cluster);
        }
        sl_yaml_close(yaml);
        if (status < 0) {
            assert_int_equal(status, SL_ERR_CONFIG);
            sl_assert_contains(sl_last_error(), "fuzz:");
            continue;
        }
        n_good++;
        bed_init(&bed, 4, 1, 1);
        bed.layers[1].cut_bytes = 1000;
        bed.layers[1].trained_bytes = 1000;
        bed.cluster = cluster;
        bed.params.n_replicas = 2;
        bed.params.n_micro_batches = 3;
        (void)bed_run(&bed);
        bed_cleanup(&bed);
    }
    assert_true(n_good > 300);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(a_whole_file_is_read),
        sl_unit_test(wrong_files_are_refused_with_their_place),
        cmocka_unit_test_setup_teardown(random_files_are_refused_or_simulated,
                                        fuzz_setup, sl_test_teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
