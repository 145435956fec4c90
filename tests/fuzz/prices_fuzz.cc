// Descriptions of machines, profiles, costs and numbers with units: whatever the text, it gives an
// error or what is written and read back unchanged, and costs that are numbers.
#include <cmath>
#include <cstring>
#include <string>

#include "compiler/machine/costs.h"
#include "compiler/machine/fit.h"
#include "schema/base/units.h"
#include "schema/format/stage_costs.h"
#include "tests/fuzz/mutate.h"
#include "tests/models.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace {

constexpr const char* kRight[] = {
    R"({"name":"m","flops":{"fp32":"19.5TFLOP/s","bf16":312e12},"reaches":{"product":0.7,)"
    R"("attention":0.5,"memory":0.85},"operator":"5us","message":"10us","memory":"80GiB",)"
    R"("memory_bandwidth":"2TB/s","node":8,"inside":{"bandwidth":"300GB/s","latency":"5us"},)"
    R"("between":{"bandwidth":"25GB/s","latency":"15us"},"reserved":"2GiB","cards":4,)"
    R"("card":"25GB/s","pair":"50GB/s","products":{"64x16x16":"1TFLOP/s","16x64x16":3e12}})",
    R"({"profile":1,"host":"x","threads":1,"steps":2,"model":{"model_type":"gpt2","vocab_size":65,)"
    R"("n_positions":8,"n_embd":16,"n_layer":4,"n_head":2},"job":{"batch":"2","sequence":"8",)"
    R"("layers":"3,1"},"seconds":{"f":[1,2],"b":[3,null],"bi":[null,1],"step":[0.5,0.1],)"
    R"("comm":[0.1,null]}})",
    "f=10ms:20ms,b=2s,comm=5us,latency=1,bandwidth=100GB/s,in=0.1",
    "f=1:2,b=2,r=1,bi=1,bw=1,fb=3,reduce=1,step=1",
    "stash=40MiB:1,input=3,work=1e6,act=1.5,grad=2KiB,weights=1GiB,transient=0",
    R"({"costs":{"f":[1,2],"b":2,"bi":1,"bw":0.5,"comm":0.1,"stash":[41943040,1],"act":1e6}})",
    "312TFLOP/s",
    "40GiB",
};
constexpr const char* kWords[] = {"0",    "-1",    "1e400", "1e-300",  "1e24", "null",
                                  "\"\"", "[]",    "{}",    "\"1s\"",  "1e15", "\"1KiB/s\"",
                                  "true", "\"4\"", "NaN",   "\"0,4\"", "2",    "\"bf16\""};

// A plan's head, of two stages on two devices.
pp::Program Head(const pp::Job& job) {
  pp::Program program;
  program.devices = program.stages = 2;
  program.microbatches = 1;
  program.pipes = {{{0, 1}}};
  program.pipe_of = {0};
  program.replicas = 2;
  program.job = job;
  return program;
}

void CheckCosts(const pp::Result<pp::CostModel>& costs) {
  if (!costs.ok()) return;
  for (const pp::CostInfo& row : pp::Costs())
    for (const double value : (*costs).*row.member) PP_CHECK(std::isfinite(value) && value >= 0);
  const auto again = pp::ParseCosts(pp::ToText(*costs), 2);
  PP_CHECK(again.ok() && pp::ToText(*again) == pp::ToText(*costs));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  static const pp::Job job{
      .model = pp::SmallModel("gpt2", true, 4), .sequence_length = 8, .layers_per_stage = {2, 2}};
  if (const auto quantity = pp::ReadQuantity(text)) {
    const auto again = pp::ReadQuantity(pp::ToText(*quantity));
    PP_CHECK(again && again->dimension == quantity->dimension);
    PP_CHECK(std::abs(again->value - quantity->value) <= quantity->value * 1e-9);
  }
  CheckCosts(pp::ParseCosts(text, 2));
  if (const auto stages = pp::ParseStageCosts(text); stages.ok()) {
    pp::Program head = Head(job);
    head.job.reset();
    CheckCosts(pp::CostsOfStages(*stages, head));
  }
  if (const auto machine = pp::ParseMachine(text); machine.ok()) {
    const auto again = pp::ParseMachine(pp::ToJson(*machine));
    PP_CHECK(again.ok() && pp::ToJson(*again) == pp::ToJson(*machine));
    CheckCosts(pp::CostsOn(*machine, Head(job)));
  }
  if (const auto parsed = pp::ParseProfiles(text); parsed.ok()) {
    const auto again = pp::ParseProfiles(pp::ToJson(*parsed));
    PP_CHECK(again.ok() && again->size() == parsed->size());
    const pp::Profile* profile = &parsed->front();
    PP_CHECK(again->front().seconds == profile->seconds && again->front().job == profile->job);
    if (profile->job.model.layers > 16 || profile->job.stages() > 4) return 0;
    pp::Job other = profile->job;
    other.layers_per_stage = {other.model.layers, 0};
    pp::Profile one = *profile;
    one.job.micro_batch_size = 1;
    for (const pp::Profiles& profiles : {pp::Profiles{*profile}, {*profile, one}}) {
      CheckCosts(pp::CostsOn(profiles, Head(other)));
      if (profile->job.stages() == 2) CheckCosts(pp::CostsOn(profiles, Head(profile->job)));
    }
  }
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned seed) {
  pp::Random random(seed);
  if (size > 0 && random.OneIn(3)) return LLVMFuzzerMutate(data, size, max_size);
  std::string text = kRight[random.Below(std::size(kRight))];
  if (size > 0 && !random.OneIn(4)) text.assign(reinterpret_cast<const char*>(data), size);
  // Another value in the place of one.
  for (int i = random.Below(3); i > 0; --i) {
    const size_t colon = text.find(random.OneIn(3) ? '=' : ':', random.Below(text.size() + 1));
    if (colon == text.npos) continue;
    const size_t end = text.find_first_of(",}]:", colon + 1);
    text.replace(colon + 1, (end == text.npos ? text.size() : end) - colon - 1,
                 kWords[random.Below(std::size(kWords))]);
  }
  if (random.OneIn(4)) pp::Mutate(random, &text);
  if (text.size() > max_size) return LLVMFuzzerMutate(data, size, max_size);
  std::memcpy(data, text.data(), text.size());
  return text.size();
}
