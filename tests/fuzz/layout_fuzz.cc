// Layouts of other trainers: whatever the text, reading it gives an error of one line or cuts of
// the model, which say the same when they are written and read again; and soon, whatever it
// repeats.
#include <cstring>
#include <numeric>
#include <string>

#include "compiler/cuts.h"
#include "tests/fuzz/mutate.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace {

constexpr int kLayers = 12;

// A part of a layout: mostly right.
std::string AnyPart(pp::Random& random) {
  static constexpr const char* kParts[] = {
      "t",    "t|",     "|",  "tt|t", "(t|)*3", "(t*2|)*2", "t*2",       "E",      "L", ",",
      "t*12", "(tt|t)", "()", "(",    ")*2",    "*3",       "*99999999", "t*0|*0", "m", " "};
  return kParts[random.Below(std::size(kParts))];
}

// All layers between random bounds, in one of the two forms.
std::string AnyLayout(pp::Random& random) {
  std::vector<int> layers(1);
  for (int i = 0; i < kLayers; ++i) {
    if (random.OneIn(3) && (layers.size() == 1 || layers.back() > 0)) layers.push_back(0);
    ++layers.back();
  }
  if (random.OneIn(3)) layers.push_back(0);
  return random.OneIn(2) ? pp::MegatronCuts(layers) : pp::TorchtitanCuts(layers);
}

void MutateLayout(pp::Random& random, std::string* text) {
  static constexpr const char* kNames[] = {"\"layers.1\",", "\"norm\"", "\"lm_head\"", "],[",
                                           "\"decoder\",",  "[]",       "\"loss\"",    "]"};
  const size_t at = random.Below(text->size() + 1);
  if (random.OneIn(3)) text->erase(at, random.Below(4));
  if (random.OneIn(2))
    text->insert(std::min(at, text->size()), text->starts_with('[')
                                                 ? kNames[random.Below(std::size(kNames))]
                                                 : AnyPart(random));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  for (const int devices : {0, 2}) {
    const auto cuts = pp::ReadCuts(text, kLayers, devices);
    if (!cuts.ok()) {
      PP_CHECK(!cuts.status().message().empty() &&
               cuts.status().message().find('\n') == std::string::npos);
      continue;
    }
    const std::vector<int>& layers = cuts->layers_per_stage;
    const int stages = static_cast<int>(layers.size());
    PP_CHECK(std::accumulate(layers.begin(), layers.end(), 0) == kLayers);
    for (int stage = 1; stage < stages - 1; ++stage) PP_CHECK(layers[stage] > 0);
    PP_CHECK(cuts->devices() == (devices > 0 ? devices : stages));
    PP_CHECK(cuts->devices() * cuts->stages_per_device == stages);
    for (const std::string& written : {pp::MegatronCuts(layers), pp::TorchtitanCuts(layers)}) {
      const auto again = pp::ReadCuts(written, kLayers, devices);
      PP_CHECK(again.ok() && again->layers_per_stage == layers && again->scheme == cuts->scheme);
    }
  }
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned seed) {
  pp::Random random(seed);
  if (random.OneIn(8)) return LLVMFuzzerMutate(data, size, max_size);
  std::string text(reinterpret_cast<const char*>(data), size);
  if (random.OneIn(2) && !pp::ReadCuts(text, kLayers, 0).ok()) text = AnyLayout(random);
  do MutateLayout(random, &text);
  while (random.OneIn(3));
  if (text.empty() || text.size() > max_size) return LLVMFuzzerMutate(data, size, max_size);
  std::memcpy(data, text.data(), text.size());
  return text.size();
}
