// A fake NVIDIA machine: libnvidia-ml.so.1, libcuda.so.1 and libcublas.so.12 in one file, so that all three share one clock
// and one memory. The file that LOWTIDE_FAKE_GPU names describes the machine as JSON; package gputest documents the fields.
//
// Time is virtual on the device and real outside: a multiplication adds its work over the card's rate to the stream's
// time, and waiting for the stream sleeps until the host's clock is there, so an honest fake is honest towards both clocks.
// The product is computed when it is read. Signatures are declared here from the public APIs.

#define _GNU_SOURCE
#include <ctype.h>
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

// ---- JSON ----

typedef struct json json;
struct json {
	char *key, *text; // text: a string's value, or NULL
	double number;    // true is 1
	int many;
	json *items; // of an object or a list
};

static const char *at;

static void blank(void) { while (isspace((unsigned char)*at) || *at == ',' || *at == ':') at++; }

static char *quoted(void) {
	const char *end = strchr(++at, '"');
	char *s = strndup(at, (size_t)(end - at));
	at = end + 1;
	return s;
}

static json value(void) {
	json v = {0};
	blank();
	if (*at == '{' || *at == '[') {
		char close = *at++ == '{' ? '}' : ']';
		for (blank(); *at && *at != close; blank()) {
			char *key = close == '}' ? quoted() : NULL;
			json item = value();
			item.key = key;
			v.items = realloc(v.items, sizeof(json) * (size_t)(v.many + 1));
			v.items[v.many++] = item;
		}
		at++;
	} else if (*at == '"') {
		v.text = quoted();
	} else if (!strncmp(at, "true", 4)) {
		v.number = 1, at += 4;
	} else if (!strncmp(at, "false", 5)) {
		at += 5;
	} else {
		char *end;
		v.number = strtod(at, &end);
		if (end == at) fprintf(stderr, "fake: cannot read JSON at %.20s\n", at), exit(9);
		at = end;
	}
	return v;
}

static json *member(json *of, const char *key) {
	for (int i = 0; of && i < of->many; i++)
		if (of->items[i].key && !strcmp(of->items[i].key, key)) return &of->items[i];
	return NULL;
}

static double number(json *of, const char *key, double otherwise) {
	json *v = member(of, key);
	return v ? v->number : otherwise;
}

static const char *words(json *of, const char *key, const char *otherwise) {
	json *v = member(of, key);
	return v && v->text ? v->text : otherwise;
}

// ---- the machine ----

enum { page_size = 4096, most = 16, most_held = 5000 };

typedef struct { uint64_t key; unsigned char *data; } page;
typedef struct { uint64_t from, size; } held;

typedef struct {
	json *j;
	int index; // in NVML's order
	double tail, factor; // end of the queued work; this stretch's noise
	uint64_t random;
	long multiplied;
	// read once: looking them up for each multiplication would make the caller slower than a fast card
	double tflops, fp64, slow_after, slow_share;
	long lost_after;
	int blas_gemm;
	int lost, burning;
	page *pages;
	size_t room, used_pages;
	held held[most_held];
	int helds;
	uint64_t taken;
	// the last multiplication
	uint64_t a, b, c;
	int n, computed;
	uint16_t *replay;
} card;

static json machine;
static card cards[most];
static int count, cuda_count, cuda_order[most];

static pthread_once_t once = PTHREAD_ONCE_INIT;

static void load(void) {
	const char *path = getenv("LOWTIDE_FAKE_GPU");
	FILE *f = path ? fopen(path, "r") : NULL;
	if (!f) fprintf(stderr, "fake: LOWTIDE_FAKE_GPU names no file\n"), exit(9);
	static char text[1 << 18];
	text[fread(text, 1, sizeof text - 1, f)] = 0;
	fclose(f);
	at = text;
	machine = value();
	json *list = member(&machine, "devices");
	for (int i = 0; list && i < list->many && i < most; i++) {
		cards[i] = (card){.j = &list->items[i], .index = i, .factor = 1, .random = 88172645463325252u + (uint64_t)i};
		json *j = cards[i].j;
		cards[i].tflops = number(j, "tflops", 258);
		cards[i].fp64 = number(j, "fp64_tflops", cards[i].tflops / 14);
		cards[i].slow_after = number(j, "slow_after", 0), cards[i].slow_share = number(j, "slow_share", 0.5);
		cards[i].lost_after = (long)number(j, "lost_after", 0), cards[i].blas_gemm = (int)number(j, "blas_gemm", 0);
		count++;
		if (!number(cards[i].j, "hidden", 0)) cuda_order[cuda_count++] = i;
	}
	if (number(&machine, "cuda_reversed", 0))
		for (int i = 0; i < cuda_count / 2; i++) {
			int swap = cuda_order[i];
			cuda_order[i] = cuda_order[cuda_count - 1 - i], cuda_order[cuda_count - 1 - i] = swap;
		}
}

static void start(void) { pthread_once(&once, load); }

static double now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static double uniform(card *c) {
	c->random ^= c->random << 13, c->random ^= c->random >> 7, c->random ^= c->random << 17;
	return (double)(c->random >> 11) * 0x1p-53;
}

static int lies(card *c, const char *how) { return !strcmp(words(c->j, "lie", ""), how); }

// ---- device memory: pages by physical address, which repeats where less memory is real than is told ----

static uint64_t physical(card *c, uint64_t address) {
	uint64_t real = (uint64_t)number(c->j, "real_memory_mb", number(c->j, "memory_mb", 81920)) << 20;
	return (address & 0xffffffffffu) % real;
}

static unsigned char *page_of(card *c, uint64_t address, int make) {
	uint64_t key = physical(c, address) / page_size + 1;
	if (c->used_pages * 2 >= c->room) {
		page *old = c->pages;
		size_t before = c->room;
		c->room = before ? before * 2 : 1024;
		c->pages = calloc(c->room, sizeof(page));
		for (size_t i = 0; i < before; i++)
			if (old[i].key) {
				size_t s = old[i].key * 0x9e3779b97f4a7c15u % c->room;
				while (c->pages[s].key) s = (s + 1) % c->room;
				c->pages[s] = old[i];
			}
		free(old);
	}
	size_t s = key * 0x9e3779b97f4a7c15u % c->room;
	while (c->pages[s].key && c->pages[s].key != key) s = (s + 1) % c->room;
	if (!c->pages[s].key) {
		if (!make) return NULL;
		c->pages[s] = (page){key, calloc(1, page_size)};
		c->used_pages++;
	}
	return c->pages[s].data;
}

static void move(card *c, uint64_t address, unsigned char *host, size_t size, int store) {
	while (size) {
		size_t offset = address % page_size, part = page_size - offset < size ? page_size - offset : size;
		unsigned char *p = page_of(c, address, store);
		if (store) memcpy(p + offset, host, part);
		else if (p) memcpy(host, p + offset, part);
		else memset(host, 0, part);
		address += part, host += part, size -= part;
	}
}

static float widen(uint16_t h) {
	int e = h >> 10 & 31, f = h & 1023;
	float v = e ? ldexpf((float)(1024 + f), e - 25) : ldexpf((float)f, -24);
	return h & 0x8000 ? -v : v;
}

static uint16_t narrow(float f) {
	uint32_t b;
	memcpy(&b, &f, 4);
	uint16_t sign = b >> 16 & 0x8000;
	int e = (int)(b >> 23 & 255) - 112;
	if (e <= 0) return sign;
	if (e >= 31) return sign | 0x7c00;
	uint32_t m = b & 0x7fffff, r = m & 0x1fff;
	uint16_t h = (uint16_t)(e << 10 | m >> 13);
	if (r > 0x1000 || (r == 0x1000 && h & 1)) h++;
	return sign | h;
}

// compute multiplies truthfully, once for each set of inputs.
static void compute(card *c) {
	if (c->computed || !c->n) return;
	size_t n = (size_t)c->n, many = n * n;
	uint16_t *h = malloc(many * 2);
	float *a = malloc(many * 4), *b = malloc(many * 4);
	move(c, c->a, (unsigned char *)h, many * 2, 0);
	for (size_t i = 0; i < many; i++) a[i] = widen(h[i]);
	move(c, c->b, (unsigned char *)h, many * 2, 0);
	for (size_t i = 0; i < many; i++) b[i] = widen(h[i]);
	for (size_t j = 0; j < n; j++)
		for (size_t i = 0; i < n; i++) {
			float s[8] = {0};
			for (size_t k = 0; k + 8 <= n; k += 8)
				for (int l = 0; l < 8; l++) s[l] += a[i * n + k + l] * b[j * n + k + l];
			h[j * n + i] = narrow(((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7])));
		}
	if (lies(c, "flip")) h[many / 3] ^= 0x4000; // one silently corrupted element
	move(c, c->c, (unsigned char *)h, many * 2, 1);
	free(h), free(a), free(b);
	c->computed = 1;
}

// ---- libcuda ----

typedef struct { card *c; double at; } mark;
static __thread card *current;

#define EXPORT __attribute__((visibility("default")))

EXPORT int cuInit(unsigned flags) { (void)flags; start(); return (int)number(&machine, "cuda_init", cuda_count ? 0 : 100); }
EXPORT int cuDriverGetVersion(int *v) { *v = (int)number(&machine, "cuda_version", 12040); return 0; }
EXPORT int cuDeviceGetCount(int *n) { *n = cuda_count; return 0; }
EXPORT int cuDeviceGet(int *d, int i) { *d = i; return i >= 0 && i < cuda_count ? 0 : 101; }

static card *by_ordinal(int d) { return &cards[cuda_order[d]]; }

EXPORT int cuDeviceGetName(char *s, int n, int d) {
	json *j = by_ordinal(d)->j;
	snprintf(s, (size_t)n, "%s", words(j, "cuda_name", words(j, "name", "fake")));
	return 0;
}

static const char *uuid_of(card *c) {
	static char made[most][48];
	snprintf(made[c->index], sizeof made[0], "GPU-00000000-0000-0000-0000-0000000000%02x", c->index);
	return words(c->j, "uuid", made[c->index]);
}

EXPORT int cuDeviceGetUuid_v2(unsigned char *u, int d) {
	const char *s = uuid_of(by_ordinal(d)) + 4;
	for (int i = 0; i < 16; i++) {
		while (*s == '-') s++;
		unsigned v = 0;
		sscanf(s, "%2x", &v);
		u[i] = (unsigned char)v, s += 2;
	}
	return 0;
}

static const char *bus_of(card *c) {
	static char made[most][32];
	snprintf(made[c->index], sizeof made[0], "00000000:%02X:00.0", c->index + 1);
	return words(c->j, "bus", made[c->index]);
}

// CUDA pads the domain to four digits where NVML pads it to eight.
EXPORT int cuDeviceGetPCIBusId(char *s, int n, int d) { snprintf(s, (size_t)n, "%s", bus_of(by_ordinal(d)) + 4); return 0; }

EXPORT int cuDeviceGetAttribute(int *v, int attribute, int d) {
	json *j = by_ordinal(d)->j;
	int major = 0, minor = 0;
	sscanf(words(j, "cuda_cc", words(j, "cc", "8.0")), "%d.%d", &major, &minor);
	switch (attribute) {
	case 13: *v = (int)number(j, "max_clock", 1410) * 1000; return 0;
	case 16: *v = (int)number(j, "units", 108); return 0;
	case 32: *v = (int)number(j, "ecc", 1); return 0;
	case 37: *v = (int)number(j, "cuda_bus_bits", number(j, "bus_bits", 5120)); return 0;
	case 38: *v = (int)(number(j, "l2_mb", 40) * 1048576); return 0;
	case 75: *v = major; return 0;
	case 76: *v = minor; return 0;
	case 133: *v = (int)number(j, "mps", 0); return 0;
	}
	return 1;
}

static uint64_t memory_of(card *c) { return (uint64_t)number(c->j, "memory_mb", 81920) << 20; }

EXPORT int cuDeviceTotalMem_v2(size_t *n, int d) {
	card *c = by_ordinal(d);
	*n = (uint64_t)number(c->j, "cuda_memory_mb", number(c->j, "memory_mb", 81920)) << 20;
	return 0;
}

EXPORT int cuDevicePrimaryCtxRetain(void **ctx, int d) { *ctx = by_ordinal(d); return 0; }
EXPORT int cuDevicePrimaryCtxRelease_v2(int d) { (void)d; return 0; }
EXPORT int cuCtxSetCurrent(void *ctx) { current = ctx; return 0; }

static uint64_t own(card *c) { return (uint64_t)number(c->j, "used_mb", 500) << 20; }

EXPORT int cuMemGetInfo_v2(size_t *unused, size_t *total) {
	*total = memory_of(current);
	*unused = *total - own(current) - current->taken;
	return 0;
}

EXPORT int cuMemAlloc_v2(uint64_t *address, size_t size) {
	card *c = current;
	int refuse = (int)number(c->j, "alloc_error", 0);
	if (refuse) return refuse;
	size = (size + page_size - 1) / page_size * page_size;
	if (own(c) + c->taken + size > memory_of(c) || c->helds == most_held) return 2;
	uint64_t from = page_size; // first fit; the list is kept in order
	int i = 0;
	while (i < c->helds && c->held[i].from < from + size) from = c->held[i].from + c->held[i].size, i++;
	memmove(&c->held[i + 1], &c->held[i], sizeof(held) * (size_t)(c->helds - i));
	c->held[i] = (held){from, size};
	c->helds++, c->taken += size;
	*address = (uint64_t)(c->index + 1) << 44 | from;
	return 0;
}

static card *owner(uint64_t address) { return &cards[(address >> 44) - 1]; }

EXPORT int cuMemFree_v2(uint64_t address) {
	card *c = owner(address);
	uint64_t from = address & 0xfffffffffffu;
	for (int i = 0; i < c->helds; i++)
		if (c->held[i].from == from) {
			c->taken -= c->held[i].size;
			memmove(&c->held[i], &c->held[i + 1], sizeof(held) * (size_t)(--c->helds - i));
			return 0;
		}
	return 1;
}

EXPORT int cuMemHostAlloc(void **p, size_t n, unsigned flags) { (void)flags; *p = malloc(n); return *p ? 0 : 2; }
EXPORT int cuMemFreeHost(void *p) { free(p); return 0; }

static int broken(card *c) { return c->lost ? 999 : 0; }

static void queue(card *c, double seconds) {
	if (c->tail == 0) c->tail = now();
	c->tail += seconds;
}

EXPORT int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t n) {
	card *c = owner(to);
	if (broken(c)) return 999;
	move(c, to, (unsigned char *)from, n, 1);
	c->computed = 0;
	return 0;
}

EXPORT int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t n) {
	card *c = owner(from);
	if (broken(c)) return 999;
	if (from == c->c && !lies(c, "idle")) compute(c);
	move(c, from, to, n, 0);
	if (from == c->c && lies(c, "replay")) { // an answer prepared for another nonce
		uint16_t *h = to;
		for (size_t i = 0; i < n / 2; i++) h[i] = narrow((float)((double)((i * 2654435761u >> 8) % 2048) - 1024) / 64);
	}
	return 0;
}

static int timed(uint64_t on, double gbs, size_t n) {
	card *c = owner(on);
	if (broken(c)) return 999;
	queue(c, (double)n / (gbs * 1e9));
	return 0;
}

EXPORT int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t n, void *s) { (void)from, (void)s; return timed(to, number(owner(to)->j, "pcie_gbs", 25), n); }
EXPORT int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t n, void *s) { (void)to, (void)s; return timed(from, number(owner(from)->j, "pcie_gbs", 25), n); }
EXPORT int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t n, void *s) { (void)from, (void)s; return timed(to, number(owner(to)->j, "bandwidth_gbs", 1750) / 2, n); }

EXPORT int cuMemcpyPeerAsync(uint64_t to, void *tc, uint64_t from, void *fc, size_t n, void *s) {
	(void)tc, (void)fc, (void)s, (void)to;
	return timed(from, number(owner(from)->j, "peer_gbs", 270), n);
}

EXPORT int cuDeviceCanAccessPeer(int *can, int a, int b) { *can = number(by_ordinal(a)->j, "peers", 1) && a != b; return 0; }
EXPORT int cuCtxEnablePeerAccess(void *ctx, unsigned flags) { (void)ctx, (void)flags; return 0; }

EXPORT int cuStreamCreate(void **s, unsigned flags) { (void)flags; *s = current; return 0; }
EXPORT int cuStreamDestroy_v2(void *s) { (void)s; return 0; }

static void wait_until(card *c, double t) {
	if (lies(c, "instant")) return;
	double left;
	while ((left = t - now()) > 0) {
		struct timespec ts = {(time_t)left, (long)((left - (double)(time_t)left) * 1e9)};
		nanosleep(&ts, NULL);
	}
}

EXPORT int cuStreamSynchronize(void *s) {
	card *c = s;
	wait_until(c, c->tail);
	c->tail = 0; // idle: the next work begins when it comes
	c->burning = 0;
	return broken(c);
}

EXPORT int cuEventCreate(void **e, unsigned flags) { (void)flags; *e = calloc(1, sizeof(mark)); return 0; }
EXPORT int cuEventDestroy_v2(void *e) { free(e); return 0; }

EXPORT int cuEventRecord(void *e, void *s) {
	card *c = s;
	queue(c, 0);
	*(mark *)e = (mark){c, c->tail};
	double gauss = 0;
	for (int i = 0; i < 12; i++) gauss += uniform(c);
	c->factor = 1 + number(c->j, "noise", 0.004) * (gauss - 6);
	return broken(c);
}

EXPORT int cuEventSynchronize(void *e) {
	mark *m = e;
	wait_until(m->c, m->at);
	m->c->burning = 0;
	if (m->c->tail <= m->at) m->c->tail = 0;
	return broken(m->c);
}

EXPORT int cuEventElapsedTime(float *ms, void *from, void *to) {
	mark *a = from, *b = to;
	*ms = (float)((b->at - a->at) * 1e3);
	if (lies(b->c, "clock")) *ms /= 8;
	if (lies(b->c, "frozen")) *ms = 0;
	return 0;
}

EXPORT int cuGetErrorString(int e, const char **s) {
	*s = e == 2 ? "out of memory" : e == 100 ? "no CUDA-capable device is detected" : e == 214 ? "uncorrectable ECC error encountered" :
	     e == 802 ? "system not yet initialized" : "unknown error";
	return 0;
}

// ---- libcublas ----

EXPORT int cublasCreate_v2(void **h) { *h = calloc(1, sizeof(void *)); return (int)number(current->j, "blas_create", 0); }
EXPORT int cublasDestroy_v2(void *h) { free(h); return 0; }
EXPORT int cublasSetStream_v2(void *h, void *s) { *(void **)h = s; return 0; }
EXPORT int cublasSetWorkspace_v2(void *h, void *p, size_t n) { (void)h; return p && n ? 0 : 7; }
EXPORT int cublasGetVersion_v2(void *h, int *v) { (void)h; *v = (int)number(&machine, "blas_version", 120405); return 0; }

// The arguments are checked one by one: a slip in the caller's ABI is status 7, not a plausible rate.
EXPORT int cublasGemmEx(void *h, int opA, int opB, int m, int n, int k, const void *alpha, const void *A, int Atype, int lda, const void *B,
                        int Btype, int ldb, const void *beta, void *C, int Ctype, int ldc, int compute_type, int algorithm) {
	card *c = *(void **)h;
	if (c->blas_gemm) return c->blas_gemm;
	int shape = opA == 1 && opB == 0 && m == n && n == k && lda == k && ldb == k && ldc == m && algorithm == -1 && A && B && C;
	int half = Atype == 2 && Btype == 2 && Ctype == 2 && compute_type == 68;
	int wide = Atype == 1 && Btype == 1 && Ctype == 1 && compute_type == 70;
	if (!shape || !(half || wide)) return 7;
	if (half ? *(const float *)alpha != 1 || *(const float *)beta != 0 : *(const double *)alpha != 1 || *(const double *)beta != 0) return 7;
	if (wide && member(c->j, "blas_double")) return (int)number(c->j, "blas_double", 0);
	double rate = wide ? c->fp64 : c->tflops;
	if (half) {
		c->multiplied++;
		if (c->lost_after && c->multiplied >= c->lost_after) c->lost = 1;
		if ((double)c->multiplied < c->slow_after) rate *= c->slow_share + (1 - c->slow_share) * (double)c->multiplied / c->slow_after;
		c->a = (uint64_t)A, c->b = (uint64_t)B, c->c = (uint64_t)C, c->n = n;
		c->burning = 1;
	}
	queue(c, 2.0 * m * n * k / (rate * 1e12 * c->factor));
	return broken(c) ? 13 : 0;
}

// ---- libnvidia-ml ----

enum { ok = 0, unsupported = 3, too_small = 7, not_loaded = 9, lost = 15, unknown_error = 999 };

EXPORT int nvmlInit_v2(void) { start(); return (int)number(&machine, "nvml_init", 0); }
EXPORT int nvmlShutdown(void) { return 0; }
EXPORT const char *nvmlErrorString(int r) {
	return r == 0 ? "Success" : r == 3 ? "Not Supported" : r == 9 ? "Driver Not Loaded" : r == 15 ? "GPU is lost" : "Unknown Error";
}
EXPORT int nvmlSystemGetDriverVersion(char *s, unsigned n) { snprintf(s, n, "%s", words(&machine, "driver", "550.54.15")); return 0; }
EXPORT int nvmlDeviceGetCount_v2(unsigned *n) { *n = (unsigned)count; return 0; }
EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned i, card **d) {
	if ((int)i >= count) return 2;
	*d = &cards[i];
	return number(cards[i].j, "handle", 0);
}

// answer gives the card's standing refusal, if it has one, before any value.
static int answer(card *c) {
	if (c->lost) return lost;
	return (int)number(c->j, "nvml_error", 0);
}

#define ANSWER(c) do { int r_ = answer(c); if (r_) return r_; } while (0)
#define OPTIONAL(c, key) do { ANSWER(c); if (!member((c)->j, key)) return unsupported; } while (0)

EXPORT int nvmlDeviceGetName(card *c, char *s, unsigned n) { ANSWER(c); snprintf(s, n, "%s", words(c->j, "name", "fake")); return 0; }
EXPORT int nvmlDeviceGetUUID(card *c, char *s, unsigned n) { ANSWER(c); snprintf(s, n, "%s", uuid_of(c)); return 0; }
EXPORT int nvmlDeviceGetSerial(card *c, char *s, unsigned n) { (void)s, (void)n; ANSWER(c); return unsupported; }
EXPORT int nvmlDeviceGetVbiosVersion(card *c, char *s, unsigned n) { ANSWER(c); snprintf(s, n, "92.00.45.00.03"); return 0; }

typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char full[32]; } pci_info;

EXPORT int nvmlDeviceGetPciInfo_v3(card *c, pci_info *p) {
	ANSWER(c);
	memset(p, 0, sizeof *p);
	p->id = (unsigned)strtoul(words(c->j, "device", "20b2"), NULL, 16) << 16 | 0x10de;
	p->subsystem = (unsigned)strtoul(words(c->j, "subsystem", "1463"), NULL, 16) << 16 | 0x10de;
	snprintf(p->full, sizeof p->full, "%s", bus_of(c));
	return 0;
}

EXPORT int nvmlDeviceGetCudaComputeCapability(card *c, int *major, int *minor) { ANSWER(c); return sscanf(words(c->j, "cc", "8.0"), "%d.%d", major, minor) == 2 ? 0 : 3; }
EXPORT int nvmlDeviceGetMemoryBusWidth(card *c, unsigned *v) { ANSWER(c); *v = (unsigned)number(c->j, "bus_bits", 5120); return 0; }

EXPORT int nvmlDeviceGetMemoryInfo(card *c, unsigned long long *m) {
	ANSWER(c);
	m[0] = memory_of(c), m[2] = own(c), m[1] = m[0] - m[2];
	return 0;
}

EXPORT int nvmlDeviceGetMaxClockInfo(card *c, int kind, unsigned *v) { (void)kind; ANSWER(c); *v = (unsigned)number(c->j, "max_clock", 1410); return 0; }
EXPORT int nvmlDeviceGetClockInfo(card *c, int kind, unsigned *v) {
	ANSWER(c);
	*v = kind == 2 ? 1593 : (unsigned)number(c->j, "clock", 1250);
	return 0;
}
EXPORT int nvmlDeviceGetPowerManagementDefaultLimit(card *c, unsigned *v) { ANSWER(c); *v = (unsigned)(number(c->j, "default_w", 400) * 1000); return 0; }
EXPORT int nvmlDeviceGetEnforcedPowerLimit(card *c, unsigned *v) { ANSWER(c); *v = (unsigned)(number(c->j, "enforced_w", number(c->j, "default_w", 400)) * 1000); return 0; }
EXPORT int nvmlDeviceGetPowerUsage(card *c, unsigned *v) { ANSWER(c); *v = (unsigned)(number(c->j, "power_w", 390) * 1000); return 0; }
EXPORT int nvmlDeviceGetTemperature(card *c, int sensor, unsigned *v) { (void)sensor; ANSWER(c); *v = (unsigned)number(c->j, "temperature", 61); return 0; }
EXPORT int nvmlDeviceGetCurrentClocksThrottleReasons(card *c, unsigned long long *v) { ANSWER(c); *v = (unsigned long long)number(c->j, "reasons", 4); return 0; }
EXPORT int nvmlDeviceGetMaxPcieLinkGeneration(card *c, unsigned *v) { ANSWER(c); *v = (unsigned)number(c->j, "pcie_gen", 4); return 0; }
EXPORT int nvmlDeviceGetMaxPcieLinkWidth(card *c, unsigned *v) { ANSWER(c); *v = 16; return 0; }
EXPORT int nvmlDeviceGetNvLinkState(card *c, unsigned link, int *state) {
	OPTIONAL(c, "links");
	if (link >= number(c->j, "links", 0)) return 2;
	*state = link < number(c->j, "links_active", number(c->j, "links", 0));
	return 0;
}

typedef struct { unsigned field, scope; long long stamp, latency; unsigned type; int ret; unsigned value, high; } field_value;

EXPORT int nvmlDeviceGetFieldValues(card *c, int n, field_value *v) {
	ANSWER(c);
	for (int i = 0; i < n; i++) {
		v[i].ret = v[i].field == 90 && member(c->j, "link_mbps") ? ok : unsupported;
		v[i].value = (unsigned)number(c->j, "link_mbps", 0);
	}
	return 0;
}

EXPORT int nvmlDeviceGetEccMode(card *c, int *is, int *pending) {
	ANSWER(c);
	int v = (int)number(c->j, "ecc", 1);
	if (v < 0) return unsupported;
	*is = *pending = v;
	return 0;
}

EXPORT int nvmlDeviceGetMigMode(card *c, unsigned *is, unsigned *pending) { OPTIONAL(c, "mig"); *is = *pending = (unsigned)number(c->j, "mig", 0); return 0; }
EXPORT int nvmlDeviceIsMigDeviceHandle(card *c, unsigned *v) { ANSWER(c); *v = (unsigned)number(c->j, "slice", 0); return 0; }
EXPORT int nvmlDeviceGetVirtualizationMode(card *c, int *v) { ANSWER(c); *v = (int)number(c->j, "virtual", 0); return 0; }

static int processes(card *c, const char *key, unsigned *n) {
	ANSWER(c);
	unsigned have = (unsigned)number(c->j, key, 0), room = *n;
	*n = have;
	return have > room ? too_small : ok;
}

EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(card *c, unsigned *n, void *list) { (void)list; return processes(c, "processes", n); }
EXPORT int nvmlDeviceGetMPSComputeRunningProcesses_v3(card *c, unsigned *n, void *list) { (void)list; return processes(c, "mps", n); }

EXPORT int nvmlDeviceGetUtilizationRates(card *c, unsigned *v) {
	ANSWER(c);
	if (number(c->j, "mig", 0)) return unsupported;
	v[0] = (unsigned)number(c->j, "busy", 0), v[1] = (unsigned)number(c->j, "busy_memory", 0);
	return 0;
}

EXPORT int nvmlDeviceGetPcieThroughput(card *c, int kind, unsigned *v) { (void)kind; OPTIONAL(c, "pcie_mbs"); *v = (unsigned)(number(c->j, "pcie_mbs", 0) * 512); return 0; }

// The counters of Hopper and later. A sample is only when it was taken; what is said of two of them are the card's fields,
// and nothing of two that are less than 100 ms apart.
typedef struct { unsigned version, is; } gpm_support;
typedef struct { card *c; double at; } gpm_sample;
typedef struct { unsigned id; int ret; double value; const char *names[3]; } gpm_metric;
typedef struct { unsigned version, n; gpm_sample *from, *to; gpm_metric metrics[]; } gpm_get;

#ifndef OLD_LIBRARY
EXPORT int nvmlGpmQueryDeviceSupport(card *c, gpm_support *s) { ANSWER(c); s->is = member(c->j, "sm") != NULL; return 0; }
EXPORT int nvmlGpmSampleAlloc(gpm_sample **s) { *s = calloc(1, sizeof **s); return 0; }
EXPORT int nvmlGpmSampleFree(gpm_sample *s) { free(s); return 0; }
EXPORT int nvmlGpmSampleGet(card *c, gpm_sample *s) { ANSWER(c); s->c = c, s->at = now(); return 0; }
EXPORT int nvmlGpmMetricsGet(gpm_get *g) {
	card *c = g->to->c;
	if (g->version != 1 || g->from->c != c || g->to->at - g->from->at < 0.1) return 2;
	ANSWER(c);
	for (unsigned i = 0; i < g->n; i++) {
		gpm_metric *m = &g->metrics[i];
		const char *field = m->id == 2 ? "sm" : m->id == 5 ? "tensor" : m->id == 10 ? "dram" : m->id == 20 || m->id == 21 ? "pcie_mbs" : NULL;
		m->ret = field ? ok : unsupported;
		m->value = field ? number(c->j, field, 0) / (m->id >= 20 ? 2 : 1) : 0;
	}
	return 0;
}
#endif

EXPORT int nvmlDeviceGetTotalEccErrors(card *c, int kind, int counter, unsigned long long *v) {
	ANSWER(c);
	if (number(c->j, "ecc", 1) < 0) return unsupported;
	*v = 0;
	if (kind == 1) {
		*v = (unsigned long long)number(c->j, "uncorrected", 0);
		if (c->multiplied) *v += (unsigned long long)number(c->j, "uncorrected_grows", 0);
	}
	(void)counter;
	return 0;
}

EXPORT int nvmlDeviceGetRemappedRows(card *c, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
	ANSWER(c);
	*corrected = 0, *uncorrected = (unsigned)number(c->j, "remapped", 0);
	*pending = (unsigned)number(c->j, "remap_pending", 0), *failed = (unsigned)number(c->j, "remap_failed", 0);
	return 0;
}

EXPORT int nvmlDeviceGetRetiredPages(card *c, int cause, unsigned *n, unsigned long long *addresses) {
	(void)cause;
	OPTIONAL(c, "retired");
	unsigned have = (unsigned)number(c->j, "retired", 0), room = *n;
	*n = have;
	if (have > room) return too_small;
	memset(addresses, 0, have * sizeof *addresses);
	return 0;
}

#ifndef OLD_LIBRARY
EXPORT int nvmlDeviceGetRetiredPagesPendingStatus(card *c, int *v) { ANSWER(c); *v = 0; return 0; }
EXPORT int nvmlDeviceGetPcieReplayCounter(card *c, unsigned *v) { ANSWER(c); *v = 0; return 0; }
EXPORT int nvmlDeviceGetViolationStatus(card *c, int policy, unsigned long long *v) { (void)policy; ANSWER(c); v[0] = 0, v[1] = 0; return 0; }
#endif
