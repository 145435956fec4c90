// The text form: whatever the text, reading it gives an error or a program; a program can be
// verified, and is unchanged after printing and reading.
#include <cstring>
#include <string>

#include "schema/check.h"
#include "schema/proof/verify.h"
#include "schema/text.h"
#include "tests/fuzz/mutate.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  const auto program = pp::Parse(text, "fuzz");
  if (!program.ok()) return 0;

  const std::string printed = pp::Print(*program);
  const auto again = pp::Parse(printed, "fuzz");
  PP_CHECK(again.ok() && *again == *program && pp::Print(*again) == printed);

  // The verifier's tables grow with the product; a larger one shows nothing new.
  if (int64_t{program->stages} * program->microbatches > 4096 || program->stages > 64) return 0;
  for (pp::Depth depth : {pp::Depth::kSchedule, pp::Depth::kLists}) {
    (void)pp::Verify(*program, depth);
  }
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned seed) {
  pp::Random random(seed);
  if (random.OneIn(6)) return LLVMFuzzerMutate(data, size, max_size);
  std::string text(reinterpret_cast<const char*>(data), size);
  if (size == 0 || random.OneIn(100)) text = pp::Print(pp::AnyProgram(random));
  auto program = pp::Parse(text, "fuzz");
  if (program.ok() && random.OneIn(2)) {
    pp::Mutate(random, &*program);
    // Not every program can be printed.
    if (pp::CheckFields(*program).ok()) text = pp::Print(*program);
  } else {
    pp::Mutate(random, &text);
  }
  if (text.empty() || text.size() > max_size) return LLVMFuzzerMutate(data, size, max_size);
  std::memcpy(data, text.data(), text.size());
  return text.size();
}
