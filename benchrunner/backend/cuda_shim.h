// The CUDA driver and cuBLAS, opened at run time. Types and constants are declared here from the public driver API, so
// that no CUDA header is needed to build.

#ifndef LOWTIDE_CUDA_SHIM_H
#define LOWTIDE_CUDA_SHIM_H

#include <stddef.h>
#include <stdint.h>

// Where an error came from: its number is in that library's list.
enum { lt_from_cuda = 1, lt_from_blas = 2 };

typedef struct {
	int from;  // 0 for none
	int code;
	const char *call;
} lt_error;

// lt_open_cuda loads libcuda.so.1 and its symbols. It returns 0, or -1 with a reason in why.
int lt_open_cuda(char *why, size_t size);

// lt_open_blas loads the newest of libcublas.so.13, .12 and .11. It returns that number, or -1 with a reason in why.
int lt_open_blas(char *why, size_t size);

lt_error lt_init(void);
lt_error lt_count(int *count);
lt_error lt_driver_version(int *version);
const char *lt_error_text(lt_error e);

// One device with its context, stream, events, matrices and handle. Every call below makes its context current on the
// calling thread first, so callers may move between threads from call to call, but not within one.
typedef struct lt_device lt_device;

typedef struct {
	char name[128];
	char bus[32];
	unsigned char uuid[16];
	int major, minor, units, bus_bits, l2, mps, ecc, clock_khz;
	size_t memory;
} lt_facts;

lt_error lt_device_open(lt_device **out, int ordinal);
lt_error lt_device_facts(lt_device *d, lt_facts *facts);
void lt_device_close(lt_device *d);

// lt_load puts n by n half precision inputs on the device: a by rows, b by columns.
lt_error lt_load(lt_device *d, const uint16_t *a, const uint16_t *b, int n, int *blas_version);
void lt_unload(lt_device *d);

// lt_burn multiplies count times, waits for the last, and gives the time by the device's events and by the host's
// monotonic clock.
lt_error lt_burn(lt_device *d, int64_t count, double *device_seconds, double *host_seconds);

// lt_product copies the product back, by columns.
lt_error lt_product(lt_device *d, uint16_t *c);

// lt_copy_rate copies bytes within the device, times over, and gives read plus written bytes per second.
lt_error lt_copy_rate(lt_device *d, size_t bytes, int times, double *rate);

// lt_link_rate copies bytes from pinned host memory to the device and back, times over, in bytes per second each way.
lt_error lt_link_rate(lt_device *d, size_t bytes, int times, double *to_device, double *to_host);

// lt_peer_rate copies bytes from one device to another, in bytes per second; -1 where they cannot reach each other.
lt_error lt_peer_rate(lt_device *from, lt_device *to, size_t bytes, int times, double *rate);

// lt_memory_test holds share of the free memory at once, writes a seeded block at every stride and at each end, and reads
// all of them back afterwards: memory that is not there, or is another address's, shows as wrong blocks.
lt_error lt_memory_test(lt_device *d, double share, size_t stride, uint64_t seed, uint64_t *held, int64_t *blocks, int64_t *wrong);

// lt_double_rate multiplies n by n double precision matrices, times over, in FLOP/s.
lt_error lt_double_rate(lt_device *d, const double *host, int n, int times, double *rate);

#endif
