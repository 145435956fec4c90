// Runs a fuzz target on inputs that are the same every time, with any compiler: what
// `bazel test` does. tools/fuzz searches for longer, guided by coverage.
//
//     file_fuzz [inputs, 10000] [seed, 1]
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned seed);

namespace {

constexpr size_t kMostBytes = 8192;
constexpr size_t kPool = 64;  // inputs kept to mutate further

std::mt19937 engine;

}  // namespace

// As in libFuzzer: changes some bytes.
extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size) {
  if (size < max_size && (size == 0 || engine() % 8 == 0)) {
    data[size] = static_cast<uint8_t>(engine());
    return size + 1;
  }
  if (engine() % 16 == 0) return engine() % (size + 1);  // cut off
  constexpr uint8_t kEdges[] = {0, 1, 2, 4, 0x7f, 0x80, 0xfe, 0xff};
  uint8_t& byte = data[engine() % size];
  switch (engine() % 3) {
    case 0:
      byte = static_cast<uint8_t>(byte ^ (1u << engine() % 8));
      break;
    case 1:
      byte = kEdges[engine() % sizeof(kEdges)];
      break;
    default: {  // a piece of it goes elsewhere
      const size_t from = engine() % size, to = engine() % size;
      const size_t length = std::min<size_t>({engine() % 16 + 1, size - from, size - to});
      std::copy_n(std::vector<uint8_t>(data + from, data + from + length).begin(), length,
                  data + to);
    }
  }
  return size;
}

int main(int argc, char** argv) {
  const long inputs = argc > 1 ? std::atol(argv[1]) : 10000;
  engine.seed(argc > 2 ? static_cast<unsigned>(std::atol(argv[2])) : 1);
  std::vector<std::vector<uint8_t>> pool(kPool);
  std::vector<uint8_t> input;
  for (long n = 0; n < inputs; ++n) {
    std::vector<uint8_t>& from = pool[engine() % kPool];
    // Most of them go back to the start before they are too broken to reach anything.
    if (engine() % 16 == 0) from.clear();
    input = from;
    input.resize(kMostBytes);
    input.resize(LLVMFuzzerCustomMutator(input.data(), from.size(), kMostBytes, engine()));
    from = input;
    LLVMFuzzerTestOneInput(input.data(), input.size());
  }
  std::printf("%ld inputs\n", inputs);
}
