// Layouts of Megatron-LM and torchtitan: read as they read them, and written as they do.
#include "compiler/cuts.h"

#include <catch2/catch.hpp>
#include <fstream>
#include <nlohmann/json.hpp>

#include "compiler/draw.h"
#include "tests/models.h"
#include "tests/must_compile.h"

namespace pp {
namespace {

using Json = nlohmann::json;

// What their parser makes of each layout, or how it refuses it (megatron_layouts.json).
Json Published() {
  std::ifstream file("tests/reference/published/megatron_layouts.json");
  REQUIRE(file);
  return Json::parse(file);
}

std::vector<int> LayersOf(const Json& stages) {
  std::vector<int> layers;
  for (const Json& stage : stages)
    layers.push_back(static_cast<int>(std::count(stage.begin(), stage.end(), "decoder")));
  return layers;
}

// What this trainer has not: layers of MTP, and stages with nothing between the ends.
bool IsBeyond(const Json& published) {
  const Json& stages = published["stages"];
  return published.contains("mtp_layers") ||
         std::any_of(stages.begin(), stages.end(), [](const Json& s) { return s.empty(); });
}

std::string LineOf(const std::string& text, const std::string& begin) {
  const size_t at = text.find("\n" + begin) + 1 + begin.size();
  return text.substr(at, text.find('\n', at) - at);
}

}  // namespace

TEST_CASE("Megatron-LM's layouts are read as its own parser reads them") {
  int read = 0, beyond = 0, wrong = 0;
  for (const Json& published : Published()) {
    const std::string layout = published["layout"];
    const int layers = published["layers"], devices = published["pp"];
    CAPTURE(layout, layers, devices);
    // A model with MTP, whose layout has none of it.
    if (published.contains("mtp_layers") && layout.find('m') == layout.npos) continue;
    const auto cuts = ReadCuts(layout, layers, devices);
    if (published.contains("error")) {
      CHECK_FALSE(cuts.ok());
      ++wrong;
      continue;
    }
    // The same as lists of names.
    const auto listed = ReadCuts(published["stages"].dump(), layers, devices);
    if (IsBeyond(published)) {
      CHECK_FALSE(listed.ok());
      const std::string& message = cuts.status().message();
      CHECK((message.starts_with("m, ") || message.find(" has nothing (") != message.npos));
      ++beyond;
      continue;
    }
    REQUIRE(cuts.status().message() == "");
    const int v = published["vp"];
    CHECK(cuts->stages_per_device == v);
    CHECK(cuts->scheme == (v > 1 ? "interleaved" : "1f1b"));
    CHECK(cuts->devices() == devices);
    CHECK(cuts->layers_per_stage == LayersOf(published["stages"]));
    REQUIRE(listed.status().message() == "");
    CHECK(listed->layers_per_stage == cuts->layers_per_stage);
    ++read;
  }
  CHECK(read >= 19);
  CHECK(beyond >= 15);
  CHECK(wrong >= 20);
}

TEST_CASE("what pipec show prints for others is read as the same cuts") {
  struct {
    const char* scheme;
    int devices, stages_per_device;
    std::vector<int> layers;
  } const plans[] = {{"1f1b", 4, 1, {2, 2, 2, 2}},
                     {"1f1b", 4, 1, {0, 4, 4, 0}},
                     {"gpipe", 2, 1, {7, 1}},
                     {"interleaved", 2, 2, {0, 3, 5, 0}},
                     {"interleaved", 2, 4, {1, 1, 1, 1, 1, 1, 1, 1}},
                     {"zb-v", 2, 2, {1, 2, 5, 0}},
                     {"zb-h1", 3, 1, {1, 7, 0}},
                     {"dualpipe-v", 2, 2, {3, 2, 2, 1}}};
  for (const auto& plan : plans) {
    CAPTURE(plan.scheme, plan.layers);
    CompileOptions options = {.scheme = plan.scheme,
                              .shape = {plan.devices, 8, plan.stages_per_device}};
    options.job.model = SmallModel("llama", false, 8);
    options.job.layers_per_stage = plan.layers;
    const auto text = Stages(MustCompile(options));
    REQUIRE(text.ok());
    const std::string megatron = LineOf(*text, "Megatron-LM: ");
    const std::string titan = LineOf(*text, "torchtitan: ");
    const bool is_v = std::string_view(plan.scheme).ends_with("-v");
    CHECK(megatron.starts_with("not ") == is_v);
    for (const std::string& layout : {titan.substr(0, titan.find(" (ZBV")), megatron}) {
      if (layout.starts_with("not ")) continue;
      CAPTURE(layout);
      const auto cuts = ReadCuts(layout, 8, plan.devices);
      REQUIRE(cuts.status().message() == "");
      CHECK(cuts->layers_per_stage == plan.layers);
      CHECK(cuts->stages_per_device == plan.stages_per_device);
    }
  }
}

TEST_CASE("a layout that nobody gave devices has one for each stage") {
  const auto cuts = ReadCuts(" E|tt|t*2,L\n", 4, 0);
  REQUIRE(cuts.ok());
  CHECK(cuts->scheme == "1f1b");
  CHECK(cuts->devices() == 3);
  CHECK(cuts->layers_per_stage == std::vector<int>{0, 2, 2});
}

// Bombs: a text of a few bytes, or a long one, and a model of a billion layers.
TEST_CASE("what is repeated is refused at the first layer too many") {
  for (const char* layout :
       {"Et*99999999999999999999L", "E(t|)*999999999L", "E*999999999", "EL*999999999t",
        "|*999999999", "E(|)*999999999L", "E(t*0|)*999999999L", "E(t*999999999)*999999999L"})
    CHECK_FALSE(ReadCuts(layout, 8, 2).ok());
  CHECK(ReadCuts("E(t*0)*1000000000(t)*0t*8L", 8, 1).ok());
  std::string deep(1 << 20, '(');
  CHECK_FALSE(ReadCuts(deep, 8, 2).ok());
  CHECK_FALSE(ReadCuts(std::string(1 << 20, '['), 8, 2).ok());
  CHECK(ReadCuts("E(t*1000)*1000000L", 1000000000, 1)->layers_per_stage ==
        std::vector<int>{1000000000});
}

}  // namespace pp
