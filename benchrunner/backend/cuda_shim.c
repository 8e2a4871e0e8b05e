//go:build cgo && linux

#define _GNU_SOURCE
#include "cuda_shim.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef int result;
typedef int device;
typedef uint64_t address;
typedef void *context, *stream, *event, *handle;

// Each line is a symbol, and its parameters. The _v2 names are the ABI since CUDA 4; cuEventElapsedTime has none.
#define CUDA_SYMBOLS(X) \
	X(cuInit, unsigned) \
	X(cuDriverGetVersion, int *) \
	X(cuDeviceGetCount, int *) \
	X(cuDeviceGet, device *, int) \
	X(cuDeviceGetName, char *, int, device) \
	X(cuDeviceGetUuid_v2, void *, device) \
	X(cuDeviceGetPCIBusId, char *, int, device) \
	X(cuDeviceGetAttribute, int *, int, device) \
	X(cuDeviceTotalMem_v2, size_t *, device) \
	X(cuMemGetInfo_v2, size_t *, size_t *) \
	X(cuDevicePrimaryCtxRetain, context *, device) \
	X(cuDevicePrimaryCtxRelease_v2, device) \
	X(cuCtxSetCurrent, context) \
	X(cuMemAlloc_v2, address *, size_t) \
	X(cuMemFree_v2, address) \
	X(cuMemHostAlloc, void **, size_t, unsigned) \
	X(cuMemFreeHost, void *) \
	X(cuMemcpyHtoD_v2, address, const void *, size_t) \
	X(cuMemcpyDtoH_v2, void *, address, size_t) \
	X(cuMemcpyHtoDAsync_v2, address, const void *, size_t, stream) \
	X(cuMemcpyDtoHAsync_v2, void *, address, size_t, stream) \
	X(cuMemcpyDtoDAsync_v2, address, address, size_t, stream) \
	X(cuMemcpyPeerAsync, address, context, address, context, size_t, stream) \
	X(cuDeviceCanAccessPeer, int *, device, device) \
	X(cuCtxEnablePeerAccess, context, unsigned) \
	X(cuStreamCreate, stream *, unsigned) \
	X(cuStreamSynchronize, stream) \
	X(cuStreamDestroy_v2, stream) \
	X(cuEventCreate, event *, unsigned) \
	X(cuEventRecord, event, stream) \
	X(cuEventSynchronize, event) \
	X(cuEventElapsedTime, float *, event, event) \
	X(cuEventDestroy_v2, event) \
	X(cuGetErrorString, result, const char **)

#define BLAS_SYMBOLS(X) \
	X(cublasCreate_v2, handle *) \
	X(cublasDestroy_v2, handle) \
	X(cublasSetStream_v2, handle, stream) \
	X(cublasSetWorkspace_v2, handle, void *, size_t) \
	X(cublasGetVersion_v2, handle, int *) \
	X(cublasGemmEx, handle, int, int, int, int, int, const void *, const void *, int, int, const void *, int, int, \
	  const void *, void *, int, int, int, int)

#define DECLARE(name, ...) static result (*p_##name)(__VA_ARGS__);
CUDA_SYMBOLS(DECLARE)
BLAS_SYMBOLS(DECLARE)

enum {
	transposed = 1, plain = 0,
	half_type = 2, double_type = 1,
	compute_single = 68, compute_double = 70,
	default_algorithm = -1,
	attribute_clock = 13, attribute_units = 16, attribute_ecc = 32, attribute_bus_bits = 37, attribute_l2 = 38,
	attribute_major = 75, attribute_minor = 76, attribute_mps = 133,
	non_blocking = 1,
	peer_already_enabled = 704,
};

static const size_t workspace_bytes = 32u << 20;

#define LOAD(name, ...) \
	if (!(p_##name = (result (*)(__VA_ARGS__))dlsym(lib, #name))) { \
		snprintf(why, size, "no symbol %s", #name); \
		return -1; \
	}

int lt_open_cuda(char *why, size_t size) {
	void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
	if (!lib) {
		snprintf(why, size, "%s", dlerror());
		return -1;
	}
	CUDA_SYMBOLS(LOAD)
	return 0;
}

int lt_open_blas(char *why, size_t size) {
	static const int versions[] = {13, 12, 11};
	for (size_t i = 0; i < sizeof versions / sizeof *versions; i++) {
		char name[32];
		snprintf(name, sizeof name, "libcublas.so.%d", versions[i]);
		void *lib = dlopen(name, RTLD_NOW | RTLD_LOCAL);
		if (!lib) {
			snprintf(why, size, "%s", dlerror());
			continue;
		}
		BLAS_SYMBOLS(LOAD)
		return versions[i];
	}
	return -1;
}

static const lt_error fine = {0, 0, NULL};

#define CUDA(call, ...) \
	do { \
		result r_ = p_##call(__VA_ARGS__); \
		if (r_) return (lt_error){lt_from_cuda, r_, #call}; \
	} while (0)

#define BLAS(call, ...) \
	do { \
		result r_ = p_##call(__VA_ARGS__); \
		if (r_) return (lt_error){lt_from_blas, r_, #call}; \
	} while (0)

// TRY passes an error of one of our own functions on.
#define TRY(call) \
	do { \
		lt_error e_ = (call); \
		if (e_.from) return e_; \
	} while (0)

lt_error lt_init(void) { CUDA(cuInit, 0); return fine; }
lt_error lt_count(int *count) { CUDA(cuDeviceGetCount, count); return fine; }
lt_error lt_driver_version(int *version) { CUDA(cuDriverGetVersion, version); return fine; }

const char *lt_error_text(lt_error e) {
	const char *text = NULL;
	if (e.from == lt_from_cuda && p_cuGetErrorString && p_cuGetErrorString(e.code, &text) == 0 && text) return text;
	return "";
}

struct lt_device {
	device dev;
	context ctx;
	stream queue;
	event start, stop;
	handle blas;
	address a, b, c, workspace;
	int n;
};

static double monotonic(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static lt_error open_into(lt_device *d, int ordinal) {
	CUDA(cuDeviceGet, &d->dev, ordinal);
	CUDA(cuDevicePrimaryCtxRetain, &d->ctx, d->dev);
	CUDA(cuCtxSetCurrent, d->ctx);
	CUDA(cuStreamCreate, &d->queue, non_blocking);
	CUDA(cuEventCreate, &d->start, 0);
	CUDA(cuEventCreate, &d->stop, 0);
	return fine;
}

lt_error lt_device_open(lt_device **out, int ordinal) {
	lt_device *d = calloc(1, sizeof *d);
	if (!d) return (lt_error){lt_from_cuda, 2, "calloc"};
	lt_error e = open_into(d, ordinal);
	if (e.from) {
		lt_device_close(d);
		return e;
	}
	*out = d;
	return fine;
}

lt_error lt_device_facts(lt_device *d, lt_facts *f) {
	CUDA(cuDeviceGetName, f->name, (int)sizeof f->name, d->dev);
	CUDA(cuDeviceGetPCIBusId, f->bus, (int)sizeof f->bus, d->dev);
	CUDA(cuDeviceGetUuid_v2, f->uuid, d->dev);
	CUDA(cuDeviceTotalMem_v2, &f->memory, d->dev);
	const struct { int *to, attribute; } wanted[] = {
		{&f->major, attribute_major}, {&f->minor, attribute_minor}, {&f->units, attribute_units},
		{&f->bus_bits, attribute_bus_bits}, {&f->l2, attribute_l2}, {&f->mps, attribute_mps},
		{&f->ecc, attribute_ecc}, {&f->clock_khz, attribute_clock},
	};
	for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
		// A driver that does not know an attribute leaves it unknown.
		if (p_cuDeviceGetAttribute(wanted[i].to, wanted[i].attribute, d->dev)) *wanted[i].to = -1;
	}
	return fine;
}

void lt_unload(lt_device *d) {
	if (p_cuCtxSetCurrent(d->ctx)) return;
	if (d->blas) p_cublasDestroy_v2(d->blas);
	address *all[] = {&d->a, &d->b, &d->c, &d->workspace};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
		if (*all[i]) p_cuMemFree_v2(*all[i]);
		*all[i] = 0;
	}
	d->blas = NULL;
}

void lt_device_close(lt_device *d) {
	if (d->ctx) {
		lt_unload(d);
		if (d->start) p_cuEventDestroy_v2(d->start);
		if (d->stop) p_cuEventDestroy_v2(d->stop);
		if (d->queue) p_cuStreamDestroy_v2(d->queue);
		p_cuDevicePrimaryCtxRelease_v2(d->dev);
	}
	free(d);
}

// ready gives the device a cuBLAS handle on its own stream, with the workspace that Hopper and newer need, set before
// any timing.
static lt_error ready(lt_device *d, int *version) {
	CUDA(cuCtxSetCurrent, d->ctx);
	if (!d->blas) {
		BLAS(cublasCreate_v2, &d->blas);
		BLAS(cublasSetStream_v2, d->blas, d->queue);
		CUDA(cuMemAlloc_v2, &d->workspace, workspace_bytes);
		BLAS(cublasSetWorkspace_v2, d->blas, (void *)(uintptr_t)d->workspace, workspace_bytes);
	}
	if (version) BLAS(cublasGetVersion_v2, d->blas, version);
	return fine;
}

lt_error lt_load(lt_device *d, const uint16_t *a, const uint16_t *b, int n, int *blas_version) {
	TRY(ready(d, blas_version));
	size_t bytes = (size_t)n * (size_t)n * sizeof *a;
	d->n = n;
	CUDA(cuMemAlloc_v2, &d->a, bytes);
	CUDA(cuMemAlloc_v2, &d->b, bytes);
	CUDA(cuMemAlloc_v2, &d->c, bytes);
	CUDA(cuMemcpyHtoD_v2, d->a, a, bytes);
	CUDA(cuMemcpyHtoD_v2, d->b, b, bytes);
	return fine;
}

static void *pointer(address a) { return (void *)(uintptr_t)a; }

// A by rows is, to a library that counts by columns, A transposed: hence the layout TN.
static lt_error multiply(lt_device *d) {
	const float one = 1, zero = 0;
	int n = d->n;
	BLAS(cublasGemmEx, d->blas, transposed, plain, n, n, n, &one, pointer(d->a), half_type, n, pointer(d->b), half_type,
	     n, &zero, pointer(d->c), half_type, n, compute_single, default_algorithm);
	return fine;
}

// elapsed closes a timed stretch: it waits for the end and reads the events. An elapsed time that is not positive is an
// error, never a rate.
static lt_error elapsed(lt_device *d, double *seconds) {
	CUDA(cuEventRecord, d->stop, d->queue);
	CUDA(cuEventSynchronize, d->stop);
	float ms = 0;
	CUDA(cuEventElapsedTime, &ms, d->start, d->stop);
	*seconds = ms * 1e-3;
	return fine;
}

lt_error lt_burn(lt_device *d, int64_t count, double *device_seconds, double *host_seconds) {
	CUDA(cuCtxSetCurrent, d->ctx);
	CUDA(cuStreamSynchronize, d->queue);
	double begin = monotonic();
	CUDA(cuEventRecord, d->start, d->queue);
	for (int64_t i = 0; i < count; i++) TRY(multiply(d));
	TRY(elapsed(d, device_seconds));
	*host_seconds = monotonic() - begin;
	return fine;
}

lt_error lt_product(lt_device *d, uint16_t *c) {
	CUDA(cuCtxSetCurrent, d->ctx);
	CUDA(cuMemcpyDtoH_v2, c, d->c, (size_t)d->n * (size_t)d->n * sizeof *c);
	return fine;
}

static lt_error copy_rate(lt_device *d, address from, address to, size_t bytes, int times, double *rate) {
	CUDA(cuMemcpyDtoDAsync_v2, to, from, bytes, d->queue);
	CUDA(cuEventRecord, d->start, d->queue);
	for (int i = 0; i < times; i++) CUDA(cuMemcpyDtoDAsync_v2, to, from, bytes, d->queue);
	double seconds = 0;
	TRY(elapsed(d, &seconds));
	*rate = seconds > 0 ? 2.0 * (double)bytes * times / seconds : 0;
	return fine;
}

lt_error lt_copy_rate(lt_device *d, size_t bytes, int times, double *rate) {
	CUDA(cuCtxSetCurrent, d->ctx);
	address from = 0, to = 0;
	CUDA(cuMemAlloc_v2, &from, bytes);
	lt_error e = fine;
	result r = p_cuMemAlloc_v2(&to, bytes);
	if (r) e = (lt_error){lt_from_cuda, r, "cuMemAlloc_v2"};
	else e = copy_rate(d, from, to, bytes, times, rate);
	if (to) p_cuMemFree_v2(to);
	p_cuMemFree_v2(from);
	return e;
}

static lt_error link_rate(lt_device *d, address at, void *pinned, size_t bytes, int times, double *to_device, double *to_host) {
	double seconds = 0;
	CUDA(cuMemcpyHtoDAsync_v2, at, pinned, bytes, d->queue);
	CUDA(cuEventRecord, d->start, d->queue);
	for (int i = 0; i < times; i++) CUDA(cuMemcpyHtoDAsync_v2, at, pinned, bytes, d->queue);
	TRY(elapsed(d, &seconds));
	*to_device = seconds > 0 ? (double)bytes * times / seconds : 0;
	CUDA(cuEventRecord, d->start, d->queue);
	for (int i = 0; i < times; i++) CUDA(cuMemcpyDtoHAsync_v2, pinned, at, bytes, d->queue);
	TRY(elapsed(d, &seconds));
	*to_host = seconds > 0 ? (double)bytes * times / seconds : 0;
	return fine;
}

lt_error lt_link_rate(lt_device *d, size_t bytes, int times, double *to_device, double *to_host) {
	CUDA(cuCtxSetCurrent, d->ctx);
	address at = 0;
	void *pinned = NULL;
	CUDA(cuMemAlloc_v2, &at, bytes);
	lt_error e = fine;
	result r = p_cuMemHostAlloc(&pinned, bytes, 0);
	if (r) e = (lt_error){lt_from_cuda, r, "cuMemHostAlloc"};
	else e = link_rate(d, at, pinned, bytes, times, to_device, to_host);
	if (pinned) p_cuMemFreeHost(pinned);
	p_cuMemFree_v2(at);
	return e;
}

static lt_error peer_copies(lt_device *from, lt_device *to, address source, address target, size_t bytes, int times, double *rate) {
	CUDA(cuCtxSetCurrent, from->ctx);
	result r = p_cuCtxEnablePeerAccess(to->ctx, 0);
	if (r && r != peer_already_enabled) return (lt_error){lt_from_cuda, r, "cuCtxEnablePeerAccess"};
	CUDA(cuMemcpyPeerAsync, target, to->ctx, source, from->ctx, bytes, from->queue);
	CUDA(cuEventRecord, from->start, from->queue);
	for (int i = 0; i < times; i++) CUDA(cuMemcpyPeerAsync, target, to->ctx, source, from->ctx, bytes, from->queue);
	double seconds = 0;
	TRY(elapsed(from, &seconds));
	*rate = seconds > 0 ? (double)bytes * times / seconds : 0;
	return fine;
}

lt_error lt_peer_rate(lt_device *from, lt_device *to, size_t bytes, int times, double *rate) {
	int can = 0;
	*rate = -1;
	CUDA(cuDeviceCanAccessPeer, &can, from->dev, to->dev);
	if (!can) return fine;
	address source = 0, target = 0;
	CUDA(cuCtxSetCurrent, from->ctx);
	CUDA(cuMemAlloc_v2, &source, bytes);
	CUDA(cuCtxSetCurrent, to->ctx);
	lt_error e = fine;
	result r = p_cuMemAlloc_v2(&target, bytes);
	if (r) e = (lt_error){lt_from_cuda, r, "cuMemAlloc_v2"};
	else e = peer_copies(from, to, source, target, bytes, times, rate);
	if (target && !p_cuCtxSetCurrent(to->ctx)) p_cuMemFree_v2(target);
	if (!p_cuCtxSetCurrent(from->ctx)) p_cuMemFree_v2(source);
	return e;
}

enum { block_words = 512 };

// pattern fills a block from the seed and its place (SplitMix64).
static void pattern(uint64_t *block, uint64_t seed, uint64_t place) {
	uint64_t x = seed ^ place * 0x9e3779b97f4a7c15u;
	for (int i = 0; i < block_words; i++) {
		uint64_t z = x += 0x9e3779b97f4a7c15u;
		z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
		z = (z ^ z >> 27) * 0x94d049bb133111ebu;
		block[i] = z ^ z >> 31;
	}
}

typedef struct { address at; size_t size; } piece;

// each_block writes, or with check reads back, the blocks of all pieces.
static lt_error each_block(const piece *pieces, int count, size_t stride, uint64_t seed, int check, int64_t *blocks, int64_t *wrong) {
	uint64_t want[block_words], got[block_words];
	uint64_t place = 0;
	for (int i = 0; i < count; i++) {
		for (size_t offset = 0;; offset += stride) {
			int last = offset + stride + sizeof want > pieces[i].size;
			size_t at = last ? pieces[i].size - sizeof want : offset;
			pattern(want, seed, place++);
			if (!check) {
				CUDA(cuMemcpyHtoD_v2, pieces[i].at + at, want, sizeof want);
			} else {
				CUDA(cuMemcpyDtoH_v2, got, pieces[i].at + at, sizeof got);
				(*blocks)++;
				*wrong += memcmp(want, got, sizeof want) != 0;
			}
			if (last) break;
		}
	}
	return fine;
}

lt_error lt_memory_test(lt_device *d, double share, size_t stride, uint64_t seed, uint64_t *held, int64_t *blocks, int64_t *wrong) {
	enum { most = 4096 };
	static const size_t smallest = 64u << 20;
	CUDA(cuCtxSetCurrent, d->ctx);
	size_t unused = 0, total = 0;
	CUDA(cuMemGetInfo_v2, &unused, &total);
	size_t goal = (size_t)((double)unused * share), size = (size_t)1 << 30;
	piece *pieces = calloc(most, sizeof *pieces);
	if (!pieces) return (lt_error){lt_from_cuda, 2, "calloc"};
	int count = 0;
	*held = 0, *blocks = 0, *wrong = 0;
	lt_error e = fine;
	// A refused piece is tried smaller: the free memory need not be in one part.
	while (count < most && *held + smallest <= goal && size >= smallest) {
		size_t want = goal - *held < size ? goal - *held : size;
		result r = p_cuMemAlloc_v2(&pieces[count].at, want);
		if (r == 2) {
			size /= 2;
			continue;
		}
		if (r) {
			e = (lt_error){lt_from_cuda, r, "cuMemAlloc_v2"};
			break;
		}
		pieces[count++].size = want;
		*held += want;
	}
	if (!e.from) e = each_block(pieces, count, stride, seed, 0, blocks, wrong);
	if (!e.from) e = each_block(pieces, count, stride, seed, 1, blocks, wrong);
	for (int i = 0; i < count; i++) p_cuMemFree_v2(pieces[i].at);
	free(pieces);
	return e;
}

static lt_error double_multiplies(lt_device *d, address a, address c, int n, int times, double *rate) {
	const double one = 1, zero = 0;
	double seconds = 0;
	for (int i = -1; i < times; i++) { // one before the clock starts
		if (i == 0) CUDA(cuEventRecord, d->start, d->queue);
		BLAS(cublasGemmEx, d->blas, transposed, plain, n, n, n, &one, pointer(a), double_type, n, pointer(a), double_type, n,
		     &zero, pointer(c), double_type, n, compute_double, default_algorithm);
	}
	TRY(elapsed(d, &seconds));
	*rate = seconds > 0 ? 2.0 * n * n * n * times / seconds : 0;
	return fine;
}

lt_error lt_double_rate(lt_device *d, const double *host, int n, int times, double *rate) {
	TRY(ready(d, NULL));
	size_t bytes = (size_t)n * (size_t)n * sizeof *host;
	address a = 0, c = 0;
	CUDA(cuMemAlloc_v2, &a, bytes);
	lt_error e = fine;
	result r = p_cuMemAlloc_v2(&c, bytes);
	if (!r) r = p_cuMemcpyHtoD_v2(a, host, bytes);
	if (r) e = (lt_error){lt_from_cuda, r, "cuMemcpyHtoD_v2"};
	else e = double_multiplies(d, a, c, n, times, rate);
	if (c) p_cuMemFree_v2(c);
	p_cuMemFree_v2(a);
	return e;
}
