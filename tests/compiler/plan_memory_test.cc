// How much larger an arena is than what is alive in it at one time. (That no two live values share
// bytes, and that nothing waits for memory forever, every plan is proved for.)
#include <algorithm>
#include <catch2/catch.hpp>
#include <map>

#include "compiler/scheme.h"
#include "schema/sections.h"
#include "schema/semantics/placement.h"
#include "schema/semantics/walk.h"
#include "tests/models.h"
#include "tests/must_compile.h"

namespace pp {
namespace {

// Gives every value its own place, and adds up what is alive.
class Load : public MemoryPolicy {
 public:
  Status Take(const Claim& claim, int64_t* offset, int32_t* last_use) override {
    *offset = next_++;
    *last_use = -1;
    most_ = std::max(most_, alive_ += claim.bytes);
    return {};
  }
  void Free(int64_t, int64_t bytes, int) override { alive_ -= bytes; }
  int64_t most() const { return most_; }

 private:
  int64_t next_ = 0, alive_ = 0, most_ = 0;
};

// Of the values of a step: the bytes of a device's arena over the most that is alive.
double Excess(const Program& program, int device) {
  const DeviceList& list = program.lists[device];
  const ValueBytes bytes(program);
  const Placement placement(program);
  Load load;
  REQUIRE(
      WalkList(program, device, list.body,
               {.depth = Depth::kPlan, .placement = &placement, .memory = &load, .bytes = &bytes})
          .ok());
  const Region& last = list.regions.back();
  return static_cast<double>(list.arena_bytes - (last.offset + last.bytes)) /
         static_cast<double>(load.most());
}

// The first and the last stage have values of sizes that no other has.
ModelConfig Uneven(int layers) {
  ModelConfig model = PaperModel(layers);
  model.vocab_size = 400;
  return model;
}

}  // namespace

TEST_CASE("an arena is little more than what is alive in it") {
  double largest = 0;
  for (const Scheme& scheme : Schemes()) {
    if (scheme.name.starts_with("pipedream")) continue;
    for (const char* passes : {"", "mario"}) {
      CompileOptions options{.scheme = std::string(scheme.name),
                             .shape = {.devices = 4, .microbatches = 12, .stages_per_device = 0},
                             .passes = passes};
      options.job.model = Uneven(16);
      options.job.micro_batch_size = 4;
      const Result<Program> compiled = Compile(options);
      if (!compiled.ok()) continue;  // Mario's passes take whole backwards only
      for (int d = 0; d < compiled->devices; ++d) {
        INFO(scheme.name << " " << passes << ", device " << d);
        const double excess = Excess(*compiled, d);
        CHECK(excess >= 1);
        CHECK(excess <= 1.15);
        largest = std::max(largest, excess);
      }
    }
  }
  CHECK(largest > 1);
}

TEST_CASE("an input half and its weight half use the memory of others in between") {
  // Pools of one size each would take 1.2 times as much.
  CompileOptions options{.scheme = "dualpipe", .shape = {.devices = 4, .microbatches = 16}};
  options.shape.stages_per_device = 0;
  options.job.model = Uneven(16);
  const Program program = MustCompile(options);
  for (int d = 0; d < 4; ++d) CHECK(Excess(program, d) <= 1.03);
}

}  // namespace pp
