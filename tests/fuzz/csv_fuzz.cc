// PyTorch's CSV: whatever the bytes, reading them gives an error or lists; those give an error or a
// plan, which says the same when it is written as CSV and read again.
#include <cstring>
#include <string>

#include "compiler/compile.h"
#include "compiler/interop.h"
#include "tests/fuzz/mutate.h"
#include "tests/models.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace {

// A cell: mostly right, for few stages and micro-batches.
std::string AnyCell(pp::Random& random) {
  static constexpr const char* kTypes[] = {
      "F",      "F",      "I",       "B",           "W",           "BW", "SEND_F", "RECV_F",
      "SEND_B", "RECV_B", "UNSHARD", "REDUCE_GRAD", "WAIT_SEND_F", "X",  ""};
  const auto number = [&] {
    return random.OneIn(50) ? std::to_string((1 << 24) - random.Below(2))
                            : std::to_string(random.Below(3));
  };
  const auto action = [&] { return number() + kTypes[random.Below(std::size(kTypes))] + number(); };
  if (random.OneIn(6)) return "(" + action() + ";" + action() + ")OVERLAP_F_B";
  return action();
}

void MutateCells(pp::Random& random, std::string* text) {
  static constexpr const char* kPieces[] = {",", "\n", "\r\n", "\"", " ", ",,", ";", "(", ")", "9"};
  const size_t comma = text->find(',', random.Below(text->size() + 1));
  const size_t at = comma == text->npos ? random.Below(text->size() + 1) : comma + 1;
  const size_t end = std::min(text->find_first_of(",\n", at), text->size());
  switch (random.Below(12)) {
    case 0:
      text->insert(at, AnyCell(random) + ",");
      return;
    case 1:
      text->replace(at, end - at, AnyCell(random));
      return;
    case 2:
      text->erase(at, end - at + 1);
      return;
    case 3:
      text->insert(random.Below(text->size() + 1), kPieces[random.Below(std::size(kPieces))]);
      return;
    default: {  // a cell changes places with the next one
      if (end >= text->size()) return;
      const size_t next = std::min(text->find_first_of(",\n", end + 1), text->size());
      const std::string cell = text->substr(at, end - at);
      const std::string other = text->substr(end + 1, next - end - 1);
      text->replace(at, next - at, other + (*text)[end] + cell);
    }
  }
}

// The lists of a right program, with or without its messages.
std::string AnyCsv(pp::Random& random) {
  static constexpr const char* kComms[] = {
      "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
      "1RECV_F0,1RECV_F1,1F0,1B0,1SEND_B0,1F1,1B1,1SEND_B1\n",
      "0F0,0SEND_F0,0F1,0SEND_F1,3RECV_F0,3F0,3B0,3SEND_B0,3RECV_F1,3F1,3B1,3SEND_B1,0RECV_B0,0B0,"
      "3W0,0RECV_B1,0B1,3W1,0W0,0W1\n"
      "1RECV_F0,1RECV_F1,1F0,2F0,2SEND_F0,1F1,2RECV_B0,2F1,2SEND_F1,2B0,2RECV_B1,1B0,1SEND_B0,2B1,"
      "1B1,1SEND_B1,2W0,2W1,1W0,1W1\n"};
  if (random.OneIn(3)) return kComms[random.Below(std::size(kComms))];
  const auto text = pp::PrintTorchCsv(pp::AnyProgram(random));
  return text.ok() ? *text : "(0F0;0B0)OVERLAP_F_B\n";
}

// So that buffers have bytes and are reused.
pp::ModelConfig TinyModel(int layers) {
  pp::ModelConfig model = pp::Gpt2Model();
  model.vocab_size = 16;
  model.max_positions = model.hidden_size = 8;
  model.layers = layers;
  model.heads = 2;
  model.intermediate_size = 32;
  return model;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  const auto lists = pp::ParseTorchCsv(text, "fuzz");
  if (!lists.ok()) {
    PP_CHECK(lists.status().message().starts_with("fuzz: ") &&
             lists.status().message().find('\n') == std::string::npos);
    return 0;
  }
  // Tables grow with the product; a larger one shows nothing new.
  if (int64_t{lists->stages} * lists->microbatches > 4096 || lists->stages > 64) return 0;
  for (pp::P2p p2p : {pp::P2p::kAsync, pp::P2p::kBlocking}) {
    pp::CompileOptions options;
    options.p2p = p2p;
    options.job.model = TinyModel(lists->stages);
    const auto plan = pp::CompileLists(*lists, "fuzz", options);
    if (!plan.ok()) {
      // What can be wrong with asynchronous messages is the lists' fault, not the passes'.
      PP_CHECK(p2p == pp::P2p::kBlocking ||
               !plan.status().message().starts_with("fuzz: after insert-comm"));
      PP_CHECK(!plan.status().message().starts_with("fuzz: after plan-memory"));
      continue;
    }
    const auto printed = pp::PrintTorchCsv(*plan);
    PP_CHECK(printed.ok());
    const auto again = pp::ParseTorchCsv(*printed, "fuzz");
    PP_CHECK(again.ok() && *pp::PrintTorchCsv(*again) == *printed);
  }
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned seed) {
  pp::Random random(seed);
  if (random.OneIn(8)) return LLVMFuzzerMutate(data, size, max_size);
  std::string text(reinterpret_cast<const char*>(data), size);
  if (random.OneIn(2) && !pp::ParseTorchCsv(text, "fuzz").ok()) text = AnyCsv(random);
  do MutateCells(random, &text);
  while (random.OneIn(3));
  if (text.empty() || text.size() > max_size) return LLVMFuzzerMutate(data, size, max_size);
  std::memcpy(data, text.data(), text.size());
  return text.size();
}
