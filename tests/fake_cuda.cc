#include "tests/fake_cuda.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/block/block.h"
#include "kernels/isa.h"
#include "kernels/launchable.h"
#include "kernels/workspace.h"
#include "runtime/comm/clock.h"
#include "runtime/device/cuda/experiments.h"

namespace pp {
namespace {

using kernels::BFloat16;
using kernels::Float16;
using kernels::MatmulNumbers;
using kernels::MatmulShape;

// Steps of a stream.
struct FakeStream;
struct FakeEvent {
  int64_t recorded = 0;             // how often; by the submitting threads
  std::atomic<int64_t> reached{0};  // the last of these recordings that a stream has reached
  std::atomic<double> seconds{0};   // when
};

struct Step {
  std::function<void()> run;
  FakeEvent* after = nullptr;  // not before this event was recorded this often
  int64_t recording = 0;
  std::function<bool()> outside;  // nor before this is true; null: it is
  bool other_rank = false;        // which makes it true
};

// Allocated memory, by its start address. Any thread.
class Blocks {
 public:
  std::byte* Take(int64_t bytes) {
    constexpr int64_t kAlignment = 256;
    std::vector<std::byte> block = TakeFree(bytes + kAlignment);
    block.assign(bytes + kAlignment, std::byte{0xff});
    const auto address = reinterpret_cast<uintptr_t>(block.data());
    std::lock_guard<std::mutex> lock(mutex_);
    const std::byte* base = block.data();
    blocks_[base] = std::move(block);
    return reinterpret_cast<std::byte*>((address + kAlignment - 1) / kAlignment * kAlignment);
  }
  void GiveBack(const std::byte* at) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = std::prev(blocks_.upper_bound(at));
    free_.push_back(std::move(found->second));
    blocks_.erase(found);
  }
  bool Has(const void* at, int64_t bytes) const {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto* begin = static_cast<const std::byte*>(at);
    auto found = blocks_.upper_bound(begin);
    if (found == blocks_.begin()) return false;
    --found;
    return begin + bytes <= found->first + found->second.size();
  }

 private:
  // One that is large enough, and not far larger, or an empty one: the system takes long to give a
  // process new pages.
  std::vector<std::byte> TakeFree(int64_t bytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto enough = [&](const auto& block) {
      const auto room = static_cast<int64_t>(block.capacity());
      return bytes <= room && room <= 2 * bytes;
    };
    const auto found = std::find_if(free_.begin(), free_.end(), enough);
    if (found == free_.end()) return {};
    std::vector<std::byte> block = std::move(*found);
    free_.erase(found);
    return block;
  }

  mutable std::mutex mutex_;
  std::map<const std::byte*, std::vector<std::byte>> blocks_;
  std::vector<std::vector<std::byte>> free_;
};

// Of all devices of the process: they copy from each other's.
Blocks& DeviceMemory() {
  static Blocks blocks;
  return blocks;
}

class FakeCuda;
struct FakeStream : kernels::cuda::emulation::StreamOf {
  explicit FakeStream(FakeCuda* cuda) : cuda(cuda) {}
  void Submit(const void* kernel, std::function<void()> work) override;
  FakeCuda* const cuda;
  std::deque<Step> steps;
};

FakeStream* FakeOf(CudaDriver::Stream stream) {
  return static_cast<FakeStream*>(static_cast<kernels::cuda::emulation::StreamOf*>(stream));
}

class FakeCuda : public CudaDriver {
 public:
  explicit FakeCuda(const FakeCudaArgs& args)
      : memory_(args.memory),
        hardware_queues_(args.hardware_queues),
        room_(args.room),
        events_left_(args.events),
        seconds_(args.seconds),
        sees_(args.sees),
        refuses_(args.refuses),
        algorithms_(args.algorithms),
        note_(args.note),
        late_(args.late),
        random_(args.seed),
        thread_([this, seed = args.seed] { Main(seed); }) {}
  ~FakeCuda() override {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      ended_ = true;
    }
    changed_.notify_all();
    thread_.join();
    for (const std::byte* memory : taken_) DeviceMemory().GiveBack(memory);
  }

  void Use() override {}
  Result<std::byte*> Allocate(int64_t bytes) override {
    NothingWaits("memory is taken");
    if (bytes > memory_ - this->bytes())
      return Status::Invalid(
          fmt::format("{} bytes more of the GPU's memory: out of memory", bytes));
    std::byte* memory = DeviceMemory().Take(bytes);
    std::lock_guard<std::mutex> lock(mutex_);
    taken_.push_back(memory);
    bytes_ += bytes;
    return memory;
  }
  Result<std::byte*> TakePinned(int64_t bytes) override {
    NothingWaits("memory is taken");
    return pinned_.Take(bytes);
  }
  int64_t bytes() const override {
    std::lock_guard<std::mutex> lock(mutex_);
    return bytes_;
  }

  int64_t FreeBytes() override { return memory_ - bytes(); }

  Stream MakeStream(Priority) override {
    CountStreams(1);
    std::lock_guard<std::mutex> lock(mutex_);
    streams_.push_back(std::make_unique<FakeStream>(this));
    return static_cast<kernels::cuda::emulation::StreamOf*>(streams_.back().get());
  }
  Event MakeEvent() override {
    std::lock_guard<std::mutex> lock(mutex_);
    events_.push_back(std::make_unique<FakeEvent>());
    return events_.back().get();
  }

  void Record(Event event, Stream stream) override {
    auto* recorded = static_cast<FakeEvent*>(event);
    const int64_t number = ++recorded->recorded;
    Put(stream, [this, recorded, number] {
      if (--events_left_ == 0) return Fail("an error");
      recorded->seconds.store(seconds_ ? clock_ : SteadySeconds());
      recorded->reached.store(number, std::memory_order_release);
    });
  }
  void WaitFor(Stream stream, Event event) override {
    auto* after = static_cast<FakeEvent*>(event);
    if (after->recorded == 0) return Fail("a stream waits for an event that was never recorded");
    Add(stream, {[] {}, after, after->recorded});
  }
  bool Reached(Event event) override {
    auto* recorded = static_cast<FakeEvent*>(event);
    return recorded->reached.load(std::memory_order_acquire) == recorded->recorded;
  }
  double SecondsBetween(Event first, Event second) override {
    return static_cast<FakeEvent*>(second)->seconds - static_cast<FakeEvent*>(first)->seconds;
  }

  void Copy(void* to, const void* from, int64_t bytes, Stream stream) override {
    for (const void* at : {static_cast<const void*>(to), from})
      if (!DeviceMemory().Has(at, bytes) && !pinned_.Has(at, bytes))
        return Fail(fmt::format("a copy of {} bytes at memory that is not the device's, nor pinned",
                                bytes));
    Put(stream, [=] { std::memcpy(to, from, bytes); });
  }
  void Fill(void* at, uint32_t word, int64_t words, Stream stream) override {
    if (!DeviceMemory().Has(at, words * 4))
      return Fail("a fill of memory that is not the device's");
    Put(stream, [=] { std::fill_n(static_cast<uint32_t*>(at), words, word); });
  }

  GemmMachine machine() override { return {.gpu = "a fake", .library = 1}; }
  // Its products need none.
  void BeginProducts(std::byte* workspace) override {
    if (reinterpret_cast<uintptr_t>(workspace) % kernels::cuda::kProductAlign != 0 ||
        !DeviceMemory().Has(workspace, kernels::cuda::kProductBytes))
      Fail("a workspace of products that is not the device's");
  }
  std::vector<GemmAlgorithm> Algorithms(const MatmulShape&, int most) override {
    std::vector<GemmAlgorithm> algorithms(std::min(most, algorithms_));
    for (size_t i = 0; i < algorithms.size(); ++i) algorithms[i].words[0] = i + 1;
    return algorithms;
  }
  PreparedProduct Prepare(const MatmulShape& shape, const GemmAlgorithm* algorithm,
                          const kernels::MatmulArgs& dead, Stream stream) override {
    const GemmAlgorithm chosen = algorithm != nullptr ? *algorithm : Algorithms(shape, 1)[0];
    if (chosen.words[0] < 1 || chosen.words[0] > static_cast<uint64_t>(algorithms_))
      Fail("no such algorithm");
    if (refuses_ && refuses_(shape)) return {.text = "a fake that refuses it"};
    products_.push_back({shape, chosen});
    const int id = static_cast<int>(products_.size()) - 1;
    if (late_ != FakeCudaArgs::Late::kProducts) Multiply(id, dead, stream);
    return {
        .id = id, .text = fmt::format("algorithm {} of a fake", chosen.words[0]), .note = note_};
  }
  void Multiply(int product, const kernels::MatmulArgs& args, Stream stream) override {
    Prepared& prepared = products_[product];
    if (!std::exchange(prepared.loaded, true)) NothingWaits("a product is loaded");
    CheckAlignment(prepared.shape, args);
    if (streams_of_.try_emplace(args.scratch, stream).first->second != stream)
      Fail("products of two streams with one workspace");
    Put(stream, [this, shape = prepared.shape, algorithm = prepared.algorithm, args] {
      if (sees_) sees_(args);
      Product(shape, args);
      if (seconds_) clock_ += seconds_(shape, algorithm);
    });
  }

  void LoadKernels() override {
    if (late_ == FakeCudaArgs::Late::kKernels) return;
    using kernels::cuda::Launchable;
    for (const Launchable* each = Launchable::first(); each != nullptr; each = each->next())
      Load(each->kernel());
  }
  void Load(const void* kernel) {
    std::lock_guard<std::mutex> lock(loading_);
    if (loaded_.insert(kernel).second) NothingWaits("a kernel is loaded");
  }

  Status status() const override {
    std::lock_guard<std::mutex> lock(mutex_);
    return status_;
  }

  void CountStreams(int more) {
    const int all = all_streams_ += more;
    if (all > hardware_queues_)
      Fail(fmt::format("{} streams, and hardware queues for {}", all, hardware_queues_));
  }
  void Put(Stream stream, std::function<void()> work) { Add(stream, {.run = std::move(work)}); }
  void Wait(Stream stream, std::function<bool()> outside, bool other_rank) {
    Add(stream, {.run = [] {}, .outside = std::move(outside), .other_rank = other_rank});
  }

 private:
  // A real one may wait for all streams then, and they for other ranks.
  void NothingWaits(const std::string& what) {
    const auto waits = [](const auto& stream) {
      return !stream->steps.empty() && stream->steps.front().outside != nullptr &&
             stream->steps.front().other_rank;
    };
    bool any = false;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      any = std::any_of(streams_.begin(), streams_.end(), waits);
    }
    if (any) Fail(what + " while a stream waits for another rank");
  }

  // That which LtProducts promises at most.
  void CheckAlignment(const MatmulShape& shape, const kernels::MatmulArgs& args) {
    const MatmulShape s = Whole(shape);
    const int64_t in = s.numbers == MatmulNumbers::kFp32 ? 4 : 2;
    const int64_t out = kernels::Rounds(s.numbers) ? 2 : 4;
    const auto check = [this](const void* at, int64_t row_bytes) {
      if (reinterpret_cast<uintptr_t>(at) % RowAlignment(row_bytes, 64) != 0)
        Fail("an operand of a product is not aligned");
    };
    check(args.a, s.lda * in);
    check(args.b, s.ldb * in);
    check(args.c, s.ldc * out);
    if (s.residual == kernels::WithResidual::kYes) check(args.residual, s.ldc * out);
  }

  void Fail(const std::string& what) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (status_.ok()) status_ = Status::Failed("CUDA: " + what);
  }

  void Add(Stream stream, Step step) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      std::deque<Step>& steps = FakeOf(stream)->steps;
      steps.push_back(std::move(step));
      const Step& head = steps.front();
      const bool waits = head.outside != nullptr ||
                         (head.after != nullptr && head.after->reached.load() < head.recording);
      if (steps.size() > room_ && waits && status_.ok())
        status_ = Status::Failed("CUDA: a stream has no room behind what waits");
    }
    changed_.notify_all();
  }

  // One step after the other, of any stream that can continue.
  void Main(unsigned seed) {
    kernels::cuda::emulation::SetSeed(seed);
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      std::vector<FakeStream*> ready;
      bool asks = false;
      for (const auto& stream : streams_) {
        if (stream->steps.empty()) continue;
        Step& next = stream->steps.front();
        if (next.after != nullptr && next.after->reached.load() < next.recording) continue;
        if (next.outside != nullptr && next.outside()) next.outside = nullptr;
        asks |= next.outside != nullptr;
        if (next.outside == nullptr) ready.push_back(stream.get());
      }
      if (ready.empty()) {
        if (ended_) return;
        asks ? void(changed_.wait_for(lock, std::chrono::microseconds(50))) : changed_.wait(lock);
        continue;
      }
      // Now and then the submitting threads get further ahead.
      const bool naps = random_() % 64 == 0;
      FakeStream* stream = ready[random_() % ready.size()];
      const std::function<void()> run = std::move(stream->steps.front().run);
      stream->steps.pop_front();
      if (!status_.ok()) continue;
      lock.unlock();
      if (naps) std::this_thread::sleep_for(std::chrono::microseconds(50));
      try {
        run();
      } catch (const std::exception& error) {
        Fail(error.what());
      }
      lock.lock();
    }
  }

  static std::vector<float> Widen(MatmulNumbers numbers, const void* halves, int64_t n) {
    std::vector<float> floats(n);
    const auto widen = [&]<typename N>(const N* from) {
      for (int64_t i = 0; i < n; ++i) floats[i] = kernels::cuda::ToFloat(from[i]);
    };
    if (numbers == kernels::kForwardNumbers<BFloat16>) widen(static_cast<const BFloat16*>(halves));
    if (numbers == kernels::kForwardNumbers<Float16>) widen(static_cast<const Float16*>(halves));
    return floats;
  }

  static void Narrow(MatmulNumbers numbers, const std::vector<float>& floats, void* halves) {
    const auto narrow = [&]<typename N>(N* to) {
      for (size_t i = 0; i < floats.size(); ++i) to[i] = kernels::cuda::FromFloat<N>(floats[i]);
    };
    if (numbers == kernels::kForwardNumbers<BFloat16>) narrow(static_cast<BFloat16*>(halves));
    if (numbers == kernels::kForwardNumbers<Float16>) narrow(static_cast<Float16*>(halves));
  }

  // Weights and biases come rounded, as cuBLASLt requires; the CPU takes floats.
  void Product(const MatmulShape& shape, kernels::MatmulArgs args) {
    MatmulShape whole = Whole(shape);
    std::vector<float> a, b, bias, aux, c;
    if (kernels::Rounds(shape.numbers)) {
      b = Widen(shape.numbers, args.b, NumbersOfB(shape));
      args.b = b.data();
      if (shape.bias == kernels::WithBias::kYes) {
        bias = Widen(shape.numbers, args.bias, shape.n);
        args.bias = bias.data();
      }
    }
    kernels::MatmulArgs floats = args;
    if (shape.epilogue != kernels::Epilogue::kNone) {
      // From sums that are not rounded, as in cuBLASLt: other bits than those of a separate kernel.
      PP_CHECK(kernels::Rounds(shape.numbers));
      PP_CHECK(shape.operands != kernels::Operands::kTN);
      PP_CHECK(shape.residual == kernels::WithResidual::kNo && whole.ldc == shape.n);
      whole.numbers = MatmulNumbers::kFp32;
      a = Widen(shape.numbers, args.a, (shape.m - 1) * whole.lda + shape.k);
      c.resize(shape.m * shape.n);
      aux = shape.epilogue == kernels::Epilogue::kGelu
                ? c
                : Widen(shape.numbers, args.aux, shape.m * shape.n);
      floats.a = a.data(), floats.aux = aux.data(), floats.c = c.data();
    }
    const size_t bytes = kernels::cpu::Matmul::ScratchBytes(whole.numbers) + 64;
    if (scratch_.size() < bytes) scratch_.resize(bytes);
    const auto address = reinterpret_cast<uintptr_t>(scratch_.data());
    floats.scratch = reinterpret_cast<void*>((address + 63) / 64 * 64);
    kernels::SupportedCpuKernels().back().MatmulRun({.shape = whole, .args = floats, .threads = 1});
    if (shape.epilogue == kernels::Epilogue::kGelu) Narrow(shape.numbers, aux, args.aux);
    if (shape.epilogue != kernels::Epilogue::kNone) Narrow(shape.numbers, c, args.c);
  }

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  const int64_t memory_;
  const int hardware_queues_;
  const size_t room_;
  std::atomic<int> all_streams_{0};  // also of libraries
  std::vector<std::byte*> taken_;
  int64_t bytes_ = 0;
  Blocks pinned_;
  std::vector<std::unique_ptr<FakeStream>> streams_;
  std::vector<std::unique_ptr<FakeEvent>> events_;
  struct Prepared {
    MatmulShape shape;
    GemmAlgorithm algorithm;
    bool loaded = false;
  };
  std::vector<Prepared> products_;            // the submitting threads'
  std::map<const void*, Stream> streams_of_;  // by the products' workspaces
  Status status_;
  int64_t events_left_;             // its thread's, as the following fields
  std::vector<std::byte> scratch_;  // of products
  const std::function<double(const MatmulShape&, const GemmAlgorithm&)> seconds_;
  const std::function<void(const kernels::MatmulArgs&)> sees_;
  const std::function<bool(const MatmulShape&)> refuses_;
  const int algorithms_;
  const std::string note_;
  const FakeCudaArgs::Late late_;
  std::mutex loading_;
  std::set<const void*> loaded_;  // kernels
  double clock_ = 0;              // its thread's
  bool ended_ = false;
  std::mt19937 random_;
  std::thread thread_;
};

void FakeStream::Submit(const void* kernel, std::function<void()> work) {
  cuda->Load(kernel);
  cuda->Put(static_cast<kernels::cuda::emulation::StreamOf*>(this), std::move(work));
}

}  // namespace

void FakeWait(CudaDriver::Stream stream, std::function<bool()> may_go_on) {
  FakeOf(stream)->cuda->Wait(stream, std::move(may_go_on), /*other_rank=*/true);
}

void FakeStreams(CudaDriver::Stream stream, int count) {
  FakeOf(stream)->cuda->CountStreams(count);
}

void FakeDelay(CudaDriver::Stream stream, double seconds) {
  const auto over = [seconds, begin = std::optional<double>()]() mutable {
    if (!begin) begin = SteadySeconds();
    return SteadySeconds() - *begin >= seconds;
  };
  FakeOf(stream)->cuda->Wait(stream, over, /*other_rank=*/false);
}

std::unique_ptr<CudaDriver> MakeFakeCuda(const FakeCudaArgs& args) {
  return std::make_unique<FakeCuda>(args);
}

}  // namespace pp
