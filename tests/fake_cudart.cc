#include "tests/fake_cudart.h"

#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace pp {

FakeCudart& Cudart() {
  static FakeCudart fake;
  return fake;
}

namespace {

thread_local int current = 0;

// Of all functions that need a context.
cudaError_t Use() {
  Cudart().contexts.insert(current);
  return cudaSuccess;
}
template <typename Handle>
cudaError_t Make(Handle* handle) {
  *handle = reinterpret_cast<Handle>(uintptr_t{16});
  return Use();
}
cudaError_t Take(void** memory, size_t bytes) {
  *memory = std::malloc(bytes);
  return Use();
}
cudaError_t Free(void* memory) {
  std::free(memory);
  return Use();
}

}  // namespace
}  // namespace pp

using pp::Cudart;
using pp::Free;
using pp::Make;
using pp::Take;
using pp::Use;

cudaError_t cudaGetDeviceCount(int* count) {
  *count = Cudart().gpus;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  std::memset(properties, 0, sizeof *properties);
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  *value = Cudart().multiprocessors;
  return cudaSuccess;
}
// Since CUDA 12 it makes the context at once.
cudaError_t cudaSetDevice(int gpu) {
  if (gpu < 0 || gpu >= Cudart().gpus) return cudaErrorInvalidDevice;
  pp::current = gpu;
  return Use();
}
cudaError_t cudaGetDevice(int* gpu) {
  *gpu = pp::current;
  return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned) {
  Cudart().peers.insert({pp::current, peer});
  return Use();
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0, *greatest = -5;
  return Use();
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  return Make(stream);
}
cudaError_t cudaStreamDestroy(cudaStream_t) { return Use(); }
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return Use(); }
cudaError_t cudaEventCreate(cudaEvent_t* event) { return Make(event); }
cudaError_t cudaEventDestroy(cudaEvent_t) { return Use(); }
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return Use(); }
cudaError_t cudaEventQuery(cudaEvent_t) { return Use(); }
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t, cudaEvent_t) {
  *milliseconds = 0;
  return Use();
}

cudaError_t cudaMalloc(void** memory, size_t bytes) { return Take(memory, bytes); }
cudaError_t cudaMemGetInfo(size_t* free, size_t* all) {
  *free = *all = size_t{1} << 30;
  return Use();
}
cudaError_t cudaMallocHost(void** memory, size_t bytes) { return Take(memory, bytes); }
cudaError_t cudaFree(void* memory) { return Free(memory); }
cudaError_t cudaFreeHost(void* memory) { return Free(memory); }
cudaError_t cudaMemcpyAsync(void*, const void*, size_t, cudaMemcpyKind, cudaStream_t) {
  return Use();
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes*, const void*) { return Use(); }
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorString(cudaError_t) { return "an error"; }
