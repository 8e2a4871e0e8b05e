// Package gpu knows accelerators: what each product is rated for, what a device says it is, how healthy it is, and
// whether its witnesses agree.
//
// It promises a rating only with its source and grade, never a zero that stands for "unknown"; findings from one
// closed list, each mismatch with both values; and device readings field by field, so that one unsupported field spoils
// nothing else. NVML is reached only in builds with cgo on Linux; every other build says so.
//
// It runs no benchmark, decides no purchase, and never changes a device's settings.
package gpu
