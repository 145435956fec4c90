// A CUDA driver that is another one, for tests that change a part of it.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "runtime/device/cuda/driver.h"

namespace pp {

class ForwardingCuda : public CudaDriver {
 public:
  explicit ForwardingCuda(std::unique_ptr<CudaDriver> inner) : inner_(std::move(inner)) {}

  void Use() override { inner_->Use(); }
  Result<std::byte*> Allocate(int64_t bytes) override { return inner_->Allocate(bytes); }
  Result<std::byte*> TakePinned(int64_t bytes) override { return inner_->TakePinned(bytes); }
  int64_t bytes() const override { return inner_->bytes(); }
  int64_t FreeBytes() override { return inner_->FreeBytes(); }
  Stream MakeStream(Priority priority) override { return inner_->MakeStream(priority); }
  Event MakeEvent() override { return inner_->MakeEvent(); }
  void Record(Event event, Stream stream) override { inner_->Record(event, stream); }
  void WaitFor(Stream stream, Event event) override { inner_->WaitFor(stream, event); }
  bool Reached(Event event) override { return inner_->Reached(event); }
  double SecondsBetween(Event first, Event second) override {
    return inner_->SecondsBetween(first, second);
  }
  void Copy(void* to, const void* from, int64_t bytes, Stream stream) override {
    inner_->Copy(to, from, bytes, stream);
  }
  void Fill(void* at, uint32_t word, int64_t words, Stream stream) override {
    inner_->Fill(at, word, words, stream);
  }
  void LoadKernels() override { inner_->LoadKernels(); }
  GemmMachine machine() override { return inner_->machine(); }
  std::vector<GemmAlgorithm> Algorithms(const kernels::MatmulShape& shape, int most) override {
    return inner_->Algorithms(shape, most);
  }
  void BeginProducts(std::byte* workspace) override { inner_->BeginProducts(workspace); }
  PreparedProduct Prepare(const kernels::MatmulShape& shape, const GemmAlgorithm* algorithm,
                          const kernels::MatmulArgs& dead, Stream stream) override {
    return inner_->Prepare(shape, algorithm, dead, stream);
  }
  void Multiply(int product, const kernels::MatmulArgs& args, Stream stream) override {
    inner_->Multiply(product, args, stream);
  }
  Status status() const override { return inner_->status(); }

 protected:
  const std::unique_ptr<CudaDriver> inner_;
};

}  // namespace pp
