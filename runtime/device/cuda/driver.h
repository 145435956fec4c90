// What the CUDA device needs from CUDA, one function each: memory, streams, events and matrix
// products.
//
// There are two: CUDA's own (cuda_driver.cc and lt_products.cc, which alone include its headers),
// and a fake for the tests that executes work in any legal order, and poisons what is not written.
// What is not ordered by a stream or an event has no order.
//
// Errors persist: the first one is in status(), and from then on nothing needs to happen.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/matmul.h"
#include "kernels/stream.h"
#include "runtime/device/cuda/gemm_table.h"
#include "schema/base/status.h"

namespace pp {

// What computes the products of a shape.
struct PreparedProduct {
  int id = -1;       // -1: cuBLASLt refuses them
  std::string text;  // of the algorithm, in words; or why it refuses
  std::string note;  // for the user; mostly empty
};

class CudaDriver {
 public:
  using Stream = kernels::cuda::Stream;
  using Event = void*;

  virtual ~CudaDriver() = default;

  // The calling thread is about to launch its own kernels.
  virtual void Use() = 0;

  // Memory of the device, aligned to 256 bytes, and of the host that copies can read and write
  // while the host continues ("pinned"). It belongs to the driver and lives as long. Invalid: there
  // is not enough.
  virtual Result<std::byte*> Allocate(int64_t bytes) = 0;
  // Both may wait for all that is in streams: not while NCCL's operations are, which wait for other
  // ranks.
  virtual Result<std::byte*> TakePinned(int64_t bytes) = 0;
  // Memory of the device allocated so far.
  virtual int64_t bytes() const = 0;
  // That nobody has allocated.
  virtual int64_t FreeBytes() = 0;

  // Where work of several streams is ready, that of kHigh begins first, and that of kLow last.
  enum class Priority : uint8_t { kLow, kNormal, kHigh };
  virtual Stream MakeStream(Priority priority = Priority::kNormal) = 0;
  virtual Event MakeEvent() = 0;
  // The event marks this point of `stream`; what it marked before is forgotten.
  virtual void Record(Event event, Stream stream) = 0;
  // Later work in `stream` waits for the event as it was last recorded.
  virtual void WaitFor(Stream stream, Event event) = 0;
  virtual bool Reached(Event event) = 0;
  // REQUIRES: both are reached.
  virtual double SecondsBetween(Event first, Event second) = 0;

  // From and to: the memory of this device or of another one of the process, or pinned.
  virtual void Copy(void* to, const void* from, int64_t bytes, Stream stream) = 0;
  // Repeats a word of four bytes.
  virtual void Fill(void* at, uint32_t word, int64_t words, Stream stream) = 0;

  // Loads all kernels of //kernels:cuda, which may wait for all that is in streams: otherwise each
  // does at its first launch.
  virtual void LoadKernels() = 0;

  // What the algorithms of products depend on.
  virtual GemmMachine machine() = 0;
  // Algorithms for a shape that compute the same bits each time; the library's own first choice
  // comes first. Empty: it has no such product.
  virtual std::vector<GemmAlgorithm> Algorithms(const kernels::MatmulShape& shape, int most) = 0;
  // The memory that products use, kernels::cuda::kProductBytes, aligned to kProductAlign. Call this
  // before the first product, or question about one.
  virtual void BeginProducts(std::byte* workspace) = 0;
  // Prepares what products of a shape need, once for each algorithm; ids count from 0. Null: the
  // library's first choice that works. Computes one with the operands `dead`, which need have no
  // values: what it needs is loaded then, not later, and whether it is refused depends on no later
  // operands.
  virtual PreparedProduct Prepare(const kernels::MatmulShape& shape, const GemmAlgorithm* algorithm,
                                  const kernels::MatmulArgs& dead, Stream stream) = 0;
  // With `scratch` in place of the memory that BeginProducts was given: each stream has its own.
  virtual void Multiply(int product, const kernels::MatmulArgs& args, Stream stream) = 0;

  // Any thread.
  virtual Status status() const = 0;
};

}  // namespace pp
