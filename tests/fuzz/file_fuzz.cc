// Plan files past the checksum: whatever the bytes, reading them gives an error or a program; a
// program can be verified, stored and printed, and comes back from both unchanged.
#include <cstring>
#include <string>

#include "schema/format/file.h"
#include "schema/proof/verify.h"
#include "schema/routines.h"
#include "schema/text.h"
#include "tests/fuzz/mutate.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace {

constexpr size_t kSeal = 16;  // bytes after the FlatBuffer

pp::Program WithoutMemory(pp::Program program) {
  for (pp::DeviceList& list : program.lists) {
    list.regions.clear();
    list.arena_bytes = 0;
    pp::ForEachList(list, [](std::vector<pp::Instruction>& one) {
      for (pp::Instruction& i : one) i.offset[0] = i.offset[1] = i.offset[2] = -1;
    });
  }
  return program;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  (void)pp::Decode(bytes, "fuzz");
  const auto program = pp::DecodeUnsealed(bytes, "fuzz");
  if (!program.ok()) return 0;

  PP_CHECK(!pp::Encode(*program, /*most_bytes=*/100).ok());
  const auto encoded = pp::Encode(*program);
  PP_CHECK(encoded.ok());
  const auto again = pp::Decode(*encoded, "fuzz");
  PP_CHECK(again.ok() && *again == *program);

  const auto parsed = pp::Parse(pp::Print(*program), "fuzz");
  PP_CHECK(parsed.ok() && *parsed == WithoutMemory(*program));

  // The verifier's tables grow with the product; a larger one shows nothing new.
  if (int64_t{program->stages} * program->microbatches > 4096 || program->stages > 64) return 0;
  for (pp::Depth depth : {pp::Depth::kSchedule, pp::Depth::kLists, pp::Depth::kPlan}) {
    (void)pp::Verify(*program, depth);
  }
  (void)pp::VerifyDevice(*program, 0, pp::Depth::kPlan, nullptr);
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned seed) {
  pp::Random random(seed);
  if (random.OneIn(4)) return LLVMFuzzerMutate(data, size, max_size);
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  auto program = pp::DecodeUnsealed(bytes, "fuzz");
  if (!program.ok()) program = pp::AnyProgram(random);
  do pp::Mutate(random, &*program);
  while (random.OneIn(3));
  const auto encoded = pp::Encode(*program);
  PP_CHECK(encoded.ok());
  const size_t length = encoded->size() - kSeal;
  if (length > max_size) return LLVMFuzzerMutate(data, size, max_size);
  std::memcpy(data, encoded->data(), length);
  return length;
}
