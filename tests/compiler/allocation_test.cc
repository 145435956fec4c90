// No thread of a rank allocates memory inside a step: malloc is replaced by one that counts.
#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "compiler/compile.h"
#include "runtime/run/train.h"
#include "tests/models.h"

namespace {

thread_local bool inside = false;
std::atomic<int64_t> allocations{0};

void Count() {
  if (inside) ++allocations;
}

}  // namespace

// glibc's names for its own functions behind the public ones.
extern "C" {
void* __libc_malloc(size_t size);
void* __libc_calloc(size_t count, size_t size);
void* __libc_realloc(void* old, size_t size);
void* __libc_memalign(size_t alignment, size_t size);

void* malloc(size_t size) {
  Count();
  return __libc_malloc(size);
}
void* calloc(size_t count, size_t size) {
  Count();
  return __libc_calloc(count, size);
}
void* realloc(void* old, size_t size) {
  Count();
  return __libc_realloc(old, size);
}
void* aligned_alloc(size_t alignment, size_t size) {
  Count();
  return __libc_memalign(alignment, size);
}
int posix_memalign(void** out, size_t alignment, size_t size) {
  Count();
  *out = __libc_memalign(alignment, size);
  return *out == nullptr;
}
}

namespace pp {
namespace {

class Watch : public StepObserver {
 public:
  void Enter(int, int64_t) override { inside = true; }
  void Leave(int, int64_t) override { inside = false; }
};

TEST_CASE("the hook counts") {
  inside = true;
  void* volatile memory = malloc(10);
  int* volatile number = new int;
  inside = false;
  free(memory);
  delete number;
  CHECK(allocations.exchange(0) == 2);
}

TEST_CASE("no memory is taken inside a step") {
  const auto text = std::filesystem::temp_directory_path() / "allocation_test.txt";
  {
    std::ofstream out(text);
    for (int i = 0; i < 2000; ++i) out << "line " << i << "\n";
  }
  const P2p p2p = GENERATE(P2p::kAsync, P2p::kBlocking);
  CompileOptions compile;
  compile.scheme = "1f1b";
  compile.shape = {.devices = 2, .microbatches = 4, .stages_per_device = 0};
  compile.p2p = p2p;
  compile.job.micro_batch_size = 2;
  ModelConfig model = Gpt2Model({.vocab_size = 256,
                                 .max_positions = 32,
                                 .hidden_size = 48,
                                 .layers = 4,
                                 .heads = 3,
                                 .intermediate_size = 192});
  compile.job.model = model;
  auto program = Compile(compile);
  REQUIRE(program.ok());
  Watch watch;
  TrainOptions options;
  options.data = {text.string()};
  options.optimizer.steps = 4;
  options.record = true;
  options.observer = &watch;
  const TrainReport report = Train(*program, options);
  INFO(report.status.message());
  CHECK(report.status.ok());
  CHECK(allocations.load() == 0);
}

}  // namespace
}  // namespace pp
