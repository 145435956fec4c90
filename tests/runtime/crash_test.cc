// The machine crashes at any instant of a save or of an export, and its disk keeps what was synced,
// and all, none or some of the rest: there is the old one or the new one, whole.
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>

#include "runtime/files/checkpoint.h"
#include "runtime/files/model_folder.h"
#include "runtime/run/states.h"
#include "schema/model/families.h"
#include "tests/folder.h"
#include "tests/models.h"
#include "tests/recorded_disk.h"

namespace pp {
namespace {

namespace fs = std::filesystem;

constexpr Lost kLost[] = {{}, {.bytes = true}, {.names = true}, {.bytes = true, .names = true}};

std::map<std::string, std::string> Files(const std::string& folder) {
  std::map<std::string, std::string> files;
  if (!fs::exists(folder)) return files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    std::ifstream in(entry.path(), std::ios::binary);
    files[entry.path().lexically_relative(folder)] =
        entry.is_directory() ? "" : std::string(std::istreambuf_iterator<char>(in), {});
  }
  return files;
}

constexpr int kRanks = 2;

// One checkpoint as the ranks and rank 0's process write it.
void Save(SaveFolder* saves, const std::string& dir, int64_t step, const ModelConfig& model) {
  const std::string folder = SavingFolder(dir, step);
  for (int rank = 0; rank < kRanks; ++rank) {
    std::error_code ignored;
    fs::create_directory(folder, ignored);
    auto shard = ShardWriter::Create(ShardPath(folder, rank));
    REQUIRE(shard.ok());
    for (int record = 0; record < 3; ++record) {
      const std::vector<float> numbers(20, static_cast<float>(step * 10 + record));
      REQUIRE(shard->Add({.tensor = record, .peer = {0, 1}, .count = 20}, numbers.data()).ok());
    }
    REQUIRE(shard->Finish().ok());
  }
  Manifest manifest;
  manifest.model = ToJson(model);
  manifest.step = step;
  std::vector<std::string> notes;
  REQUIRE(saves->Finish(manifest, kRanks, nullptr, &notes).message() == "");
  REQUIRE(notes.empty());
}

// The step of the latest checkpoint that is whole; 0: none.
int64_t Latest(const std::string& dir, const ModelConfig& model) {
  for (const int64_t step : SavedSteps(dir)) {
    const auto found = OpenCheckpoint(StepFolder(dir, step), model, 0, 1);
    if (!found.ok()) continue;
    REQUIRE(CheckModel(*found, model).message() == "");  // or nothing would be verified
    return found->manifest.step;
  }
  return 0;
}

TEST_CASE("a save") {
  const Folder folder, disk;
  const std::string dir = folder / "saves", after = disk / "after";
  const ModelConfig model = Gpt2Model({.vocab_size = 61,
                                       .max_positions = 8,
                                       .hidden_size = 8,
                                       .layers = 1,
                                       .heads = 1,
                                       .intermediate_size = 8});
  Record(folder / "");
  std::vector<size_t> begins, ends;  // of each save
  {
    auto saves = SaveFolder::Open(dir);
    REQUIRE(saves.ok());
    saves->Keep(std::make_shared<SourceFiles>(
        SourceFiles{{"config.json", "{}"}, {"tokenizer.json", "[1, 2]"}}));
    for (int64_t step = 1; step <= 4; ++step) {  // the first two are pruned
      begins.push_back(Recorded());
      Save(&*saves, dir, step, model);
      ends.push_back(Recorded());
    }
  }
  EndRecord();
  Replay(Recorded(), {}, after);
  REQUIRE(Files(after) == Files(folder / "."));  // nothing has escaped the record
  REQUIRE(SavedSteps(dir) == std::vector<int64_t>{4, 3});
  int times = 0;
  for (size_t changes = 0; changes <= Recorded(); ++changes)
    for (const Lost& lost : kLost) {
      Replay(changes, lost, after);
      // Saves that had ended, and begun.
      const auto ended = std::upper_bound(ends.begin(), ends.end(), changes) - ends.begin();
      const auto begun = std::upper_bound(begins.begin(), begins.end(), changes) - begins.begin();
      const int64_t latest = Latest(after + "/saves", model);
      INFO(changes << " changes, lost: bytes " << lost.bytes << ", names " << lost.names);
      CHECK(latest >= ended);
      CHECK(latest <= begun);
      ++times;
      if (!fs::exists(after + "/saves")) continue;
      // The next run finds its way, gives what is whole its name, and leaves nothing that is half.
      auto next = SaveFolder::Open(after + "/saves");
      REQUIRE(next.ok());
      for (const auto& entry : fs::directory_iterator(after + "/saves"))
        CHECK_FALSE(entry.path().filename().string().starts_with(".saving"));
      CHECK(Latest(after + "/saves", model) >= latest);
      CHECK(Latest(after + "/saves", model) <= begun);
    }
  CHECK(times > 400);
}

TEST_CASE("an export") {
  const Folder folder, disk;
  const std::string after = disk / "after";
  const std::vector<ModelFolderEntry> entries = {{"a", {3, 4}}, {"b", {5}}};
  Record(folder / "");
  size_t begin = 0;
  {
    auto model = ModelFolder::Open(folder / "model");
    REQUIRE(model.ok());
    REQUIRE(model
                ->Begin({.files = {{"config.json", "{}\n"}, {"tokenizer.json", "[]"}},
                         .file_bytes = 40},
                        entries)
                .ok());
    const std::vector<float> numbers(12, 7);
    begin = Recorded();
    REQUIRE(model->Start().ok());
    REQUIRE(model->Write(0, 0, numbers.data(), 12).ok());
    REQUIRE(model->Write(1, 0, numbers.data(), 5).ok());
    REQUIRE(model->Finish().message() == "");
  }
  EndRecord();
  Replay(Recorded(), {}, after);
  const auto whole = Files(folder / "model");
  REQUIRE(whole.size() == 5);
  REQUIRE(Files(after) == Files(folder / "."));
  for (size_t changes = 0; changes <= Recorded(); ++changes)
    for (const Lost& lost : kLost) {
      Replay(changes, lost, after);
      INFO(changes << " changes, lost: bytes " << lost.bytes << ", names " << lost.names);
      const bool there = fs::exists(after + "/model");
      if (there) CHECK(Files(after + "/model") == whole);
      if (changes == Recorded()) CHECK(there);
      CHECK((!there || changes > begin));
      if (!there) CHECK(ModelFolder::Open(after + "/model").ok());
      CHECK_FALSE(fs::exists(after + "/model.unfinished"));
    }
}

}  // namespace
}  // namespace pp
