// Records what a GPU does, by CUPTI's activity records, in a program that knows nothing of it: CUDA
// loads this library where CUDA_INJECTION64_PATH names it, and calls InitializeInjection. Lines of
// the file that GPU_PROFILE names, their fields separated by tabs; times are nanoseconds:
//
//   name  NUMBER  NAME           as in the binary, mangled
//   run   NUMBER  BEGIN  END     a kernel with this name; 0: a copy, 1: a fill
//   lost  RECORDS                that CUPTI had no room for
//
// tools/gpu/profile.py reads it.
#include <cupti.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>

namespace {

constexpr size_t kAlignment = 8, kBufferBytes = size_t{8} << 20;

std::FILE* file = nullptr;
std::mutex mutex;  // of the following; CUPTI's thread and the one that exits
std::map<std::string, int> numbers;
size_t lost = 0;

void Complain(const char* what, CUptiResult result) {
  const char* text = nullptr;
  cuptiGetResultString(result, &text);
  std::fprintf(stderr, "profile: %s: %s\n", what, text != nullptr ? text : "unknown error");
}

int NumberOf(const char* name) {
  const auto [at, is_new] = numbers.try_emplace(name, static_cast<int>(numbers.size()));
  if (is_new) std::fprintf(file, "name\t%d\t%s\n", at->second, name);
  return at->second;
}

void WriteRun(int number, uint64_t begin, uint64_t end) {
  std::fprintf(file, "run\t%d\t%llu\t%llu\n", number, static_cast<unsigned long long>(begin),
               static_cast<unsigned long long>(end));
}

void CUPTIAPI GiveBuffer(uint8_t** buffer, size_t* size, size_t* most) {
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(kAlignment, kBufferBytes));
  *size = *buffer != nullptr ? kBufferBytes : 0;
  *most = 0;
}

void CUPTIAPI TakeBuffer(CUcontext context, uint32_t stream, uint8_t* buffer, size_t, size_t used) {
  std::lock_guard<std::mutex> lock(mutex);
  CUpti_Activity* record = nullptr;
  while (cuptiActivityGetNextRecord(buffer, used, &record) == CUPTI_SUCCESS) {
    switch (record->kind) {
      case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: {
        const auto* kernel = reinterpret_cast<const CUpti_ActivityKernel10*>(record);
        WriteRun(NumberOf(kernel->name), kernel->start, kernel->end);
        break;
      }
      case CUPTI_ACTIVITY_KIND_MEMCPY: {
        const auto* copy = reinterpret_cast<const CUpti_ActivityMemcpy6*>(record);
        WriteRun(0, copy->start, copy->end);
        break;
      }
      case CUPTI_ACTIVITY_KIND_MEMSET: {
        const auto* fill = reinterpret_cast<const CUpti_ActivityMemset4*>(record);
        WriteRun(1, fill->start, fill->end);
        break;
      }
      default:
        break;
    }
  }
  size_t dropped = 0;
  if (cuptiActivityGetNumDroppedRecords(context, stream, &dropped) == CUPTI_SUCCESS)
    lost += dropped;
  std::fflush(file);
  std::free(buffer);
}

void Finish() {
  const CUptiResult flushed = cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
  if (flushed != CUPTI_SUCCESS) Complain("cuptiActivityFlushAll", flushed);
  std::lock_guard<std::mutex> lock(mutex);
  if (lost > 0) std::fprintf(file, "lost\t%zu\n", lost);
  std::fflush(file);
}

}  // namespace

// 1: it has begun.
extern "C" __attribute__((visibility("default"))) int InitializeInjection() {
  const char* path = std::getenv("GPU_PROFILE");
  file = path != nullptr ? std::fopen(path, "w") : nullptr;
  if (file == nullptr) {
    std::fprintf(stderr, "profile: GPU_PROFILE: cannot be written\n");
    return 0;
  }
  NumberOf("copy");
  NumberOf("fill");
  CUptiResult result = cuptiActivityRegisterCallbacks(GiveBuffer, TakeBuffer);
  for (const CUpti_ActivityKind kind : {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
                                        CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMSET})
    if (result == CUPTI_SUCCESS) result = cuptiActivityEnable(kind);
  if (result != CUPTI_SUCCESS) {
    Complain("CUPTI", result);
    return 0;
  }
  std::atexit(Finish);
  return 1;
}
