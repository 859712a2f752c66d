/* A load on a Kafka broker that is not bound by its client. One JSON line of figures on stdout.
 *
 *   load requests PORT TOPIC PARTITIONS CONNECTIONS SECONDS RECORDS BYTES   Produce frames, one in flight each
 *   load fetch    PORT TOPIC PARTITIONS END                                 Fetch frames up to END bytes in all
 *   load produce  LIBRDKAFKA PORT TOPIC COUNT BYTES CODEC                   librdkafka, acks=all
 *   load consume  LIBRDKAFKA PORT TOPIC PARTITIONS COUNT                    librdkafka, without checking CRCs
 *
 * The first two speak the protocol themselves (Produce 8, Fetch 11) to 127.0.0.1. librdkafka is the one that
 * confluent-kafka brings along; its few functions are declared here, so that no header is needed.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define WARM_UP_S 0.5
#define LEADERS_S 30
#define MAX_LATENCIES 8000000
#define FETCH_BYTES (1 << 20)

static void fail(const char *what) {
    fprintf(stderr, "load: %s: %s\n", what, errno ? strerror(errno) : "unexpected");
    exit(1);
}

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

/* -- bytes ---------------------------------------------------------------------------------------------- */

static uint8_t *put16(uint8_t *p, int value) {
    p[0] = value >> 8, p[1] = value;
    return p + 2;
}

static uint8_t *put32(uint8_t *p, uint32_t value) { return put16(put16(p, value >> 16), value & 0xFFFF); }

static uint8_t *put64(uint8_t *p, uint64_t value) { return put32(put32(p, value >> 32), value & 0xFFFFFFFF); }

static uint8_t *put_varint(uint8_t *p, int64_t value) {
    uint64_t zigzag = ((uint64_t)value << 1) ^ (uint64_t)(value >> 63);
    for (; zigzag >= 128; zigzag >>= 7) *p++ = zigzag | 128;
    *p++ = zigzag;
    return p;
}

static uint8_t *put_text(uint8_t *p, const char *text) {
    size_t size = strlen(text);
    memcpy(put16(p, size), text, size);
    return p + 2 + size;
}

static uint32_t get32(const uint8_t *p) { return (uint32_t)p[0] << 24 | p[1] << 16 | p[2] << 8 | p[3]; }

static uint64_t get64(const uint8_t *p) { return (uint64_t)get32(p) << 32 | get32(p + 4); }

static uint32_t crc32c(const uint8_t *p, size_t size) {
    static uint32_t table[256];
    uint32_t crc = ~0u;
    for (uint32_t i = 0; !table[255] && i < 256; i++) {
        uint32_t c = i;
        for (int k = 0; k < 8; k++) c = c & 1 ? (c >> 1) ^ 0x82F63B78u : c >> 1;
        table[i] = c;
    }
    while (size--) crc = table[(crc ^ *p++) & 255] ^ (crc >> 8);
    return ~crc;
}

/* A RecordBatch v2 of records without keys. */
static size_t make_batch(uint8_t *out, int records, int bytes) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    uint64_t ms = t.tv_sec * 1000ull;
    uint8_t *p = put32(put64(out, 0), 0);
    p = put32(p, -1), *p++ = 2, p += 4;
    p = put32(put16(p, 0), records - 1);
    p = put64(put64(p, ms), ms);
    p = put32(put16(put64(p, -1), -1), -1);
    p = put32(p, records);
    for (int i = 0; i < records; i++) {
        uint8_t body[32], *b = body;
        *b++ = 0, b = put_varint(b, 0), b = put_varint(b, i), b = put_varint(b, -1), b = put_varint(b, bytes);
        p = put_varint(p, (b - body) + bytes + 1);
        memcpy(p, body, b - body), p += b - body;
        for (int k = 0; k < bytes; k++) *p++ = (uint8_t)(31 * k + 7 * i);
        *p++ = 0;
    }
    put32(out + 8, p - out - 12);
    put32(out + 17, crc32c(out + 21, p - out - 21));
    return p - out;
}

/* -- requests of our own -------------------------------------------------------------------------------- */

struct client {
    int fd;
    uint8_t *request, *in;
    size_t size, sent, have, room;
    double began_s;
    int partition;
    uint64_t offset;
};

static void open_client(struct client *c, int port, size_t room) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int one = 1;
    c->fd = socket(AF_INET, SOCK_STREAM, 0);
    if (c->fd < 0 || connect(c->fd, (void *)&to, sizeof to)) fail("connect");
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    c->in = malloc(c->room = room);
}

static uint8_t *put_header(uint8_t *p, int api, int version) {
    p = put32(put16(put16(p + 4, api), version), 7);
    return put_text(p, "load");
}

static void send_more(struct client *c, int epoll) {
    while (c->sent < c->size) {
        ssize_t n = send(c->fd, c->request + c->sent, c->size - c->sent, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0 && errno == EAGAIN) break;
        if (n <= 0) fail("send");
        c->sent += n;
    }
    struct epoll_event e = {.events = EPOLLIN | (c->sent < c->size ? EPOLLOUT : 0), .data.ptr = c};
    static __thread int known[65536];
    if (known[c->fd] != (int)e.events) {
        if (epoll_ctl(epoll, known[c->fd] ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, c->fd, &e)) fail("epoll");
        known[c->fd] = e.events;
    }
}

/* Read what is there; true when the answer is whole. */
static int answered(struct client *c) {
    size_t want = 4;
    if (c->have >= 4) want = 4 + get32(c->in);
    if (want > c->room && !(c->in = realloc(c->in, c->room = want))) fail("memory");
    ssize_t n = recv(c->fd, c->in + c->have, (c->have < 4 ? 65536 : want) - c->have, 0);
    if (n <= 0) fail("the broker closed a connection");
    c->have += n;
    return c->have >= 4 && c->have >= 4 + (size_t)get32(c->in);
}

static int by_size(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}

static void requests(int port, const char *topic, int partitions, int connections, double seconds, int records, int bytes) {
    size_t room = 512 + records * (bytes + 32), count = 0;
    float *latencies = malloc(MAX_LATENCIES * sizeof *latencies);
    struct client *clients = calloc(connections, sizeof *clients);
    struct epoll_event ready[512];
    int epoll = epoll_create1(0);
    uint8_t *batch = malloc(room);
    size_t batch_size = make_batch(batch, records, bytes), place = 0;
    for (int i = 0; i < connections; i++) {
        struct client *c = clients + i;
        open_client(c, port, 65536);
        c->request = malloc(room + 512);
        uint8_t *p = put_header(c->request, 0, 8);
        p = put32(put16(put16(p, -1), -1), 30000);
        p = put32(put_text(put32(p, 1), topic), 1);
        c->partition = i % partitions, place = p - c->request;
        p = put32(put32(p, c->partition), batch_size);
        memcpy(p, batch, batch_size), p += batch_size;
        c->size = p - c->request;
        put32(c->request, c->size - 4);
    }
    size_t code = 4 + 4 + 4 + 2 + strlen(topic) + 4 + 4;
    double begin_s = now_s(), from_s = begin_s + WARM_UP_S, until_s = from_s + seconds;
    uint64_t all = 0;
    for (int i = 0; i < connections; i++) clients[i].began_s = now_s(), send_more(clients + i, epoll);
    for (int open = connections; open;) {
        int n = epoll_wait(epoll, ready, 512, 60000);
        if (n <= 0) errno = 0, fail("nothing was answered for a minute");
        for (int k = 0; k < n; k++) {
            struct client *c = ready[k].data.ptr;
            if (ready[k].events & EPOLLOUT) send_more(c, epoll);
            if (!(ready[k].events & ~EPOLLOUT) || !answered(c)) continue;
            double done_s = now_s();
            int error = c->in[code] << 8 | c->in[code + 1];
            c->have = c->sent = 0;
            if ((error == 3 || error == 6) && done_s < begin_s + LEADERS_S) { /* a new topic's are not there yet */
                c->began_s = done_s;
                send_more(c, epoll);
                continue;
            }
            if (error) fprintf(stderr, "load: the broker refused a batch: error %d\n", error), exit(1);
            if (c->began_s >= from_s && done_s < until_s && count < MAX_LATENCIES) latencies[count++] = done_s - c->began_s;
            all++, c->began_s = done_s;
            c->partition = (c->partition + connections) % partitions;
            put32(c->request + place, c->partition);
            if (done_s < until_s) send_more(c, epoll);
            else open--; /* every request that was sent has its answer */
        }
    }
    if (!count) errno = 0, fail("no request was answered");
    qsort(latencies, count, sizeof *latencies, by_size);
    printf("{\"rate\": %.1f, \"p50_us\": %.1f, \"p99_us\": %.1f, \"mb_s\": %.3f, \"requests\": %lu}\n", count / seconds,
           latencies[count / 2] * 1e6, latencies[count * 99 / 100] * 1e6, count / seconds * records * bytes / 1e6, all);
}

static void next_fetch(struct client *c, const char *topic, int epoll) {
    uint8_t *p = put_header(c->request, 1, 11);
    p = put32(put32(put32(p, -1), 500), 1);
    p = put32(p, 50 << 20), *p++ = 0, p = put32(put32(p, 0), -1);
    p = put_text(put32(p, 1), topic);
    p = put64(put32(put32(put32(p, 1), c->partition), -1), c->offset);
    p = put32(put64(p, -1), FETCH_BYTES);
    p = put16(put32(p, 0), 0);
    c->size = p - c->request, c->sent = c->have = 0;
    put32(c->request, c->size - 4);
    send_more(c, epoll);
}

static void fetch(int port, const char *topic, int partitions, double end) {
    struct client *clients = calloc(partitions, sizeof *clients);
    struct epoll_event ready[64];
    int epoll = epoll_create1(0);
    for (int i = 0; i < partitions; i++) {
        open_client(clients + i, port, FETCH_BYTES + 65536);
        clients[i].request = malloc(1024), clients[i].partition = i;
    }
    double begin_s = now_s(), got = 0;
    uint64_t answers = 0;
    for (int i = 0; i < partitions; i++) next_fetch(clients + i, topic, epoll);
    while (got < end) {
        int n = epoll_wait(epoll, ready, 64, 15000);
        if (n <= 0) errno = 0, fail("nothing came for 15 seconds");
        for (int k = 0; k < n; k++) {
            struct client *c = ready[k].data.ptr;
            if (ready[k].events & EPOLLOUT) send_more(c, epoll);
            if (!(ready[k].events & ~EPOLLOUT) || !answered(c)) continue;
            uint8_t *p = c->in + 4 + 4 + 4 + 2 + 4 + 4 + 2 + strlen(topic) + 4 + 4;
            if (p[0] || p[1]) errno = 0, fail("the broker refused a fetch");
            p += 2 + 8 + 8 + 8;
            int aborted = get32(p);
            p += 4 + (aborted > 0 ? 16 * aborted : 0) + 4;
            uint32_t size = get32(p), at = 0;
            for (p += 4; at + 61 <= size && at + 12 + get32(p + at + 8) <= size; at += 12 + get32(p + at + 8))
                c->offset = get64(p + at) + get32(p + at + 23) + 1;
            got += at, answers++;
            next_fetch(c, topic, epoll);
        }
    }
    double took_s = now_s() - begin_s;
    printf("{\"mb_s\": %.3f, \"seconds\": %.3f, \"bytes\": %.0f, \"requests\": %lu}\n", got / took_s / 1e6, took_s, got, answers);
}

/* -- librdkafka ----------------------------------------------------------------------------------------- */

typedef struct {
    int err;
    void *topic;
    int32_t partition;
    void *payload;
    size_t len;
    void *key;
    size_t key_len;
    int64_t offset;
    void *opaque;
} message;

static void *library;

static void *named(const char *name) {
    void *found = dlsym(library, name);
    if (!found) fprintf(stderr, "load: %s\n", dlerror()), exit(1);
    return found;
}
#define CALL(type, name, ...) ((type(*)(__VA_ARGS__))named(name))

static uint64_t failed, delivered;

static void on_delivery(void *client, const message *m, void *opaque) {
    (void)client, (void)opaque;
    if (m->err) failed++;
    else delivered++;
}

static void *new_client(const char *path, int kind, const char *port, const char *const *settings) {
    char text[512], bootstrap[64];
    library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    if (!library) fprintf(stderr, "load: %s\n", dlerror()), exit(1);
    void *conf = CALL(void *, "rd_kafka_conf_new", void)();
    snprintf(bootstrap, sizeof bootstrap, "127.0.0.1:%s", port);
    const char *const first[] = {"bootstrap.servers", bootstrap, NULL};
    for (const char *const *each = first; *each; each += 2)
        if (CALL(int, "rd_kafka_conf_set", void *, const char *, const char *, char *, size_t)(conf, each[0], each[1], text, sizeof text))
            fprintf(stderr, "load: %s\n", text), exit(1);
    for (const char *const *each = settings; *each; each += 2)
        if (CALL(int, "rd_kafka_conf_set", void *, const char *, const char *, char *, size_t)(conf, each[0], each[1], text, sizeof text))
            fprintf(stderr, "load: %s\n", text), exit(1);
    if (!kind) CALL(void, "rd_kafka_conf_set_dr_msg_cb", void *, void (*)(void *, const message *, void *))(conf, on_delivery);
    void *client = CALL(void *, "rd_kafka_new", int, void *, char *, size_t)(kind, conf, text, sizeof text);
    if (!client) fprintf(stderr, "load: %s\n", text), exit(1);
    return client;
}

/* Lines as of a web server's log: they compress about three times. */
static char *payloads(size_t count, size_t bytes) {
    static const char *const words[] = {"GET", "POST", "/orders/", "/customers/", "200", "404", "Mozilla/5.0",
                                        "latency_us=", "trace=", "eu-west-1", "us-east-2", "\"ok\"", "session="};
    char *all = malloc(count * bytes + 64);
    uint32_t seed = 1;
    for (size_t at = 0; at < count * bytes;) {
        seed = seed * 1664525u + 1013904223u;
        at += snprintf(all + at, 64, "%s%08x ", words[(seed >> 8) % 13], seed);
    }
    return all;
}

static void produce(const char *path, const char *port, const char *name, uint64_t count, size_t bytes, const char *codec) {
    const char *const settings[] = {"acks", "all", "linger.ms", "5", "batch.size", "1000000", "batch.num.messages", "100000",
                                    "compression.type", codec, "queue.buffering.max.messages", "1000000",
                                    "queue.buffering.max.kbytes", "524288", "log.connection.close", "false", NULL};
    void *client = new_client(path, 0, port, settings);
    void *topic = CALL(void *, "rd_kafka_topic_new", void *, const char *, void *)(client, name, NULL);
    int (*send_one)(void *, int32_t, int, void *, size_t, const void *, size_t, void *) = named("rd_kafka_produce");
    int (*poll)(void *, int) = named("rd_kafka_poll");
    char *ready = payloads(64, bytes);
    const void *told = NULL; /* partitions are known before the clock starts */
    if (CALL(int, "rd_kafka_metadata", void *, int, void *, const void **, int)(client, 0, topic, &told, 10000)) fail("metadata");
    double begin_s = now_s();
    for (uint64_t i = 0; i < count; i++) {
        while (send_one(topic, -1, 0, ready + i % 64 * bytes, bytes, NULL, 0, NULL)) poll(client, 10);
        if (!(i & 1023)) poll(client, 0);
    }
    if (CALL(int, "rd_kafka_flush", void *, int)(client, 120000)) errno = 0, fail("not everything was sent in two minutes");
    double took_s = now_s() - begin_s;
    if (failed || delivered != count) errno = 0, fail("records were refused");
    printf("{\"mb_s\": %.3f, \"seconds\": %.3f, \"bytes\": %.0f}\n", count * bytes / took_s / 1e6, took_s, (double)count * bytes);
}

static void consume(const char *path, const char *port, const char *name, int partitions, uint64_t count) {
    const char *const settings[] = {"group.id", "load", "enable.auto.commit", "false", "check.crcs", "false",
                                    "queued.min.messages", "1000000", "queued.max.messages.kbytes", "262144",
                                    "fetch.message.max.bytes", "1048576", "log.connection.close", "false", NULL};
    void *client = new_client(path, 1, port, settings);
    void *topic = CALL(void *, "rd_kafka_topic_new", void *, const char *, void *)(client, name, NULL);
    void *queue = CALL(void *, "rd_kafka_queue_new", void *)(client);
    const void *told = NULL;
    if (CALL(int, "rd_kafka_metadata", void *, int, void *, const void **, int)(client, 0, topic, &told, 10000)) fail("metadata");
    ssize_t (*take)(void *, int, message **, size_t) = named("rd_kafka_consume_batch_queue");
    void (*drop)(message *) = named("rd_kafka_message_destroy");
    message *found[8192];
    uint64_t got = 0, bytes = 0;
    double begin_s = now_s(), last_s = begin_s;
    for (int i = 0; i < partitions; i++)
        if (CALL(int, "rd_kafka_consume_start_queue", void *, int32_t, int64_t, void *)(topic, i, 0, queue)) fail("consume");
    while (got < count) {
        ssize_t n = take(queue, 500, found, 8192);
        for (ssize_t i = 0; i < n; i++) {
            if (!found[i]->err) got++, bytes += found[i]->len;
            drop(found[i]);
        }
        if (n > 0) last_s = now_s();
        if (now_s() - last_s > 15) errno = 0, fail("nothing came for 15 seconds");
    }
    double took_s = now_s() - begin_s;
    printf("{\"mb_s\": %.3f, \"seconds\": %.3f, \"bytes\": %.0f}\n", bytes / took_s / 1e6, took_s, (double)bytes);
    fflush(stdout);
    _exit(0); /* closing a consumer takes seconds that nobody measures */
}

int main(int count, char **words) {
    const char *what = count > 1 ? words[1] : "";
    struct rlimit files = {65536, 65536};
    setrlimit(RLIMIT_NOFILE, &files);
    if (!strcmp(what, "requests") && count == 9)
        requests(atoi(words[2]), words[3], atoi(words[4]), atoi(words[5]), atof(words[6]), atoi(words[7]), atoi(words[8]));
    else if (!strcmp(what, "fetch") && count == 6) fetch(atoi(words[2]), words[3], atoi(words[4]), atof(words[5]));
    else if (!strcmp(what, "produce") && count == 8)
        produce(words[2], words[3], words[4], strtoull(words[5], NULL, 10), strtoul(words[6], NULL, 10), words[7]);
    else if (!strcmp(what, "consume") && count == 7)
        consume(words[2], words[3], words[4], atoi(words[5]), strtoull(words[6], NULL, 10));
    else {
        fprintf(stderr, "load: see the first lines of load.c\n");
        return 2;
    }
    return 0;
}
