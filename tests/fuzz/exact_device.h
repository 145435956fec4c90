// A CPU whose arena has exactly the bytes that the plan says. On the heap, AddressSanitizer sees
// the first byte that is used beyond it; elsewhere, it is only a range of addresses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

#include "runtime/device/cpu_device.h"
#include "schema/model/layout.h"

namespace pp {

class ExactDevice : public Device {
 public:
  ExactDevice() = default;
  // For an arena that nobody uses: at `base`, where nothing needs to be.
  explicit ExactDevice(std::byte* base) : base_(base) {}
  ~ExactDevice() override { operator delete (heap_, std::align_val_t{kAlign}); }

  Status Allocate(int64_t bytes) override {
    bytes_ = bytes;
    if (base_ != nullptr) return {};
    heap_ = operator new (bytes, std::align_val_t{kAlign});
    base_ = static_cast<std::byte*>(heap_);
    return {};
  }
  std::byte* at(int64_t offset) const override {
    PP_CHECK(offset >= 0 && offset <= bytes_);
    return base_ + offset;
  }
  int64_t HighWater() const override { return bytes_; }
  Queue& compute() override { return cpu_->compute(); }
  Queue& reduce() override { return cpu_->reduce(); }
  std::unique_ptr<Kernels> MakeKernels(const KernelsArgs& args) override {
    return cpu_->MakeKernels(args);
  }
  void Finish() override {}

  // Whether so many bytes are in the arena.
  bool Has(const void* at, int64_t bytes) const {
    const auto* begin = static_cast<const std::byte*>(at);
    return begin >= base_ && begin <= base_ + bytes_ && bytes >= 0 &&
           bytes <= base_ + bytes_ - begin;
  }

 private:
  const std::unique_ptr<Device> cpu_ = MakeCpuDevice();
  void* heap_ = nullptr;
  std::byte* base_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace pp
