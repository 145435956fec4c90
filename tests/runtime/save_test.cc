// A training that is saved, and continues under another cut, equals one that never stopped; and no
// damaged checkpoint is ever loaded.
#include <fmt/format.h>
#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <optional>

#include "runtime/run/states.h"
#include "tests/saved_run.h"

namespace pp {
namespace {

namespace fs = std::filesystem;

// The latest checkpoint that is whole, as a run finds it.
Result<Checkpoint> Find(const std::string& dir, const ModelConfig& model,
                        std::vector<std::string>* notes) {
  for (const int64_t step : SavedSteps(dir)) {
    Result<Checkpoint> found = OpenCheckpoint(StepFolder(dir, step), model, 0, 1);
    if (found.ok()) return found;
    CHECK(found.status().code() == Code::kInvalid);
    notes->push_back(found.status().message());
  }
  return Status::Invalid("none");
}

double Furthest(const std::vector<double>& a, const std::vector<double>& b, size_t from) {
  REQUIRE(a.size() == b.size() + from);
  double most = 0;
  for (size_t i = 0; i < b.size(); ++i)
    if (a[from + i] != b[i])
      most = std::max(most, std::abs(a[from + i] - b[i]) / std::abs(a[from + i]));
  return most;
}

TEST_CASE("saved under one cut, resumed under another") {
  const Layout one = {"gpipe"};
  const std::pair<Layout, Layout> pairs[] = {
      {{"gpipe"}, {"1f1b", 4}},
      {{"zb-v", 2}, {"interleaved", 2}},
      {{"hanayo", 2}, {"gpipe"}},
      {{"1f1b", 2}, {"1f1b", 2, 2}},
      {{"1f1b", 2, 2}, {"zb-v", 2}},
      {{"gpipe", 1, 2}, {"gpipe", 1, 4}},
      {{"1f1b", 2}, {"1f1b", 2, 1, 2, 1}},
      {{"1f1b", 2, 1, 2, 1}, {"gpipe"}},
      {{"chimera", 2}, {"1f1b", 4}},
      {{"1f1b", 2, 2, 2, 1}, {"chimera", 2, 1, 2}},
      {{"gpipe", 1, 1, 4, 1}, {"gpipe", 1, 2, 2, 1}},
      {{"dualpipe", 2}, {"fold-aiao", 2, 1, 2, 1}},
      {{"1f1b", 4, 1, 1, 0, {}, {0, 2, 2, 0}}, {"zb-v", 2}},
      {{"interleaved", 2, 1, 2, 1}, {"1f1b", 4, 1, 2, 1, {}, {0, 3, 1, 0}}},
  };
  for (const bool llama : {false, true}) {
    const ModelConfig model = TinyModel(llama);
    for (const auto& [before, after] : pairs) {
      if (llama && std::max(before.tp, after.tp) > 2) continue;
      INFO(before.Text() << " -> " << after.Text());
      const Folder folder;
      const Outcome whole = Run(model, one, folder, {.seed = 5});
      const Outcome first = Run(model, before, folder, {.until = 4, .save_every = 2, .seed = 5});
      REQUIRE(first.status.message() == "");
      CHECK(first.saved == 4);
      const Outcome second = Run(model, after, folder, {.save_every = 2, .resume = true});
      REQUIRE(second.status.message() == "");
      CHECK(second.saved == 6);
      const std::string from = StepFolder(folder / "saves", 4);
      std::vector<std::string> notes = {"continues from " + from};
      const auto said = [&](const char* name, int was, int is) {
        if (was != is) notes.push_back(fmt::format("{}: {} (before {}: {})", name, is, from, was));
      };
      said("--dp", before.dp, after.dp);
      said("--tp", before.tp, after.tp);
      const auto pipes = [](const Layout& s) {
        return std::string(s.scheme) == "chimera" || std::string(s.scheme) == "dualpipe" ? 2 : 1;
      };
      said("copies of the weights in a replica", pipes(before), pipes(after));
      CHECK(second.notes == notes);
      CHECK(SavedSteps(folder / "saves") == std::vector<int64_t>{6, 4});
      const auto alone = [&](const Layout& s) { return s.tp * s.dp == 1 && pipes(s) == 1; };
      const double far = Furthest(whole.numbers, second.numbers, 8);
      CHECK(far < 1e-5);
      if (alone(before) && alone(after)) CHECK(far == 0);
    }
  }
}

TEST_CASE("saved under one order of ranks, resumed under the other, with the same bits") {
  const ModelConfig model = TinyModel(false);
  const auto in = [](RankOrder order) {
    return [order](CompileOptions* options) { options->rank_order = order; };
  };
  constexpr auto kOne = RankOrder::kTpPpDp, kOther = RankOrder::kTpDpPp;
  for (const Layout& shape : {Layout{"1f1b", 2, 2, 2}, Layout{"1f1b", 2, 1, 2, 1},
                              Layout{"chimera", 2, 1, 2}, Layout{"interleaved", 2, 1, 4, 1}})
    for (const auto& [before, after] : {std::pair(kOne, kOther), std::pair(kOther, kOne)}) {
      INFO(shape.Text());
      const Folder folder;
      const Outcome whole = Run(model, shape, folder, {.seed = 5, .plan = in(after)});
      REQUIRE(
          Run(model, shape, folder, {.until = 4, .save_every = 4, .seed = 5, .plan = in(before)})
              .status.message() == "");
      const Outcome second = Run(model, shape, folder, {.resume = true, .plan = in(after)});
      REQUIRE(second.status.message() == "");
      CHECK(second.notes ==
            std::vector<std::string>{"continues from " + StepFolder(folder / "saves", 4)});
      CHECK(Furthest(whole.numbers, second.numbers, 8) == 0);
    }
}

// Without a norm the last stage steps first, and one device has both ends of the tied tensor.
TEST_CASE("saved without a norm, with both ends on one device") {
  const Folder folder;
  const ModelConfig model = TinyModel(false);
  const Layout shape = {"zb-v", 2, 1, 1, 0, false};
  const Outcome whole = Run(model, shape, folder, {.seed = 5});
  REQUIRE(Run(model, shape, folder, {.until = 4, .save_every = 4, .seed = 5}).status.ok());
  const Outcome second = Run(model, {"1f1b", 4, 1, 1, 0, false}, folder, {.resume = true});
  REQUIRE(second.status.message() == "");
  CHECK(Furthest(whole.numbers, second.numbers, 8) == 0);
}

// PipeDream updates its weights once per micro-batch; AdamW counts all updates.
TEST_CASE("updates are counted, not steps") {
  const Folder folder;
  ModelConfig model = TinyModel(true);
  const Layout pipedream = {"pipedream", 1};
  REQUIRE(Run(model, pipedream, folder, {.until = 4, .save_every = 4, .seed = 5}).status.ok());
  std::vector<std::string> notes;
  const auto checkpoint = Find(folder / "saves", model, &notes);
  REQUIRE(checkpoint.ok());
  CHECK(checkpoint->manifest.updates == 4 * 8);
  const Outcome whole = Run(model, pipedream, folder, {.seed = 5});
  const Outcome second = Run(model, pipedream, folder, {.resume = true});
  REQUIRE(second.status.message() == "");
  CHECK(Furthest(whole.numbers, second.numbers, 8) == 0);  // one device has no older weights
}

// One byte of every 97 of every file; a truncated or missing file; another model.
TEST_CASE("a checkpoint that is not whole is not used, and the one before it is") {
  const Folder folder;
  const ModelConfig model = TinyModel(false);
  const Layout shape = {"1f1b", 2, 2};
  REQUIRE(Run(model, shape, folder, {.until = 4, .save_every = 2, .seed = 5}).status.ok());
  const std::string saves = folder / "saves", last = StepFolder(saves, 4);
  const auto found = [&](std::vector<std::string>* notes) {
    const auto checkpoint = Find(saves, model, notes);
    return checkpoint.ok() ? checkpoint->manifest.step : 0;
  };
  std::vector<std::string> notes;
  REQUIRE(found(&notes) == 4);
  REQUIRE(notes.empty());
  const std::vector<std::string> files = {"manifest.json", "rank-0", "rank-1", "rank-2", "rank-3"};
  for (const std::string& name : files) {
    const std::string path = last + "/" + name;
    const auto size = static_cast<int64_t>(fs::file_size(path));
    for (int64_t at = name == "manifest.json" ? 0 : size % 97; at < size;
         at += name == "manifest.json" ? 1
               : at > size - 64        ? 1
                                       : size / 40) {
      std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
      file.seekg(at);
      const char byte = static_cast<char>(file.get());
      const auto put = [&](char value) {
        file.seekp(at);
        file.put(value);
        file.flush();
      };
      put(static_cast<char>(byte ^ 4));
      notes.clear();
      INFO(name << " byte " << at);
      CHECK(found(&notes) == 2);
      REQUIRE(notes.size() == 1);
      CHECK(notes[0].starts_with(path));
      put(byte);
    }
    fs::rename(path, path + ".gone");
    CHECK(found(&notes) == 2);
    fs::copy_file(path + ".gone", path);
    fs::resize_file(path, size - 1);
    CHECK(found(&notes) == 2);
    fs::remove(path);
    fs::rename(path + ".gone", path);
  }
  notes.clear();
  CHECK(found(&notes) == 4);

  // A part of another checkpoint.
  fs::copy_file(last + "/rank-1", last + "/kept");
  fs::copy_file(StepFolder(saves, 2) + "/rank-1", last + "/rank-1",
                fs::copy_options::overwrite_existing);
  CHECK(found(&notes) == 2);
  CHECK(notes.back() == last + "/rank-1: belongs to another checkpoint");
  const Outcome went_on = Run(model, shape, folder, {.until = 4, .save_every = 2, .resume = true});
  REQUIRE(went_on.status.message() == "");
  CHECK(went_on.notes.front().starts_with("not used: " + last));
  CHECK(went_on.saved == 4);  // beside the damaged one, which is all that is left of that training
  CHECK(fs::exists(saves + "/.damaged-step-00000004/rank-3"));
  CHECK(SavedSteps(saves) == std::vector<int64_t>{4, 2});
  CHECK(found(&notes) == 4);

  ModelConfig other = model;
  other.heads = 2;
  const Outcome foreign = Run(other, shape, folder, {.resume = true});
  CHECK(foreign.status.code() == Code::kInvalid);
  CHECK(foreign.status.message() ==
        "--resume: " + last + "/manifest.json: n_head is 4 (the plan's model has 2)");
  CHECK(Run(model, shape, folder, {.resume = true, .seed = 6}).status.message() ==
        "--seed: 6 (" + last + " has 5)");
  CHECK(Run(model, shape, folder, {.until = 4, .resume = true}).status.message() ==
        "--steps: 4 (" + last + " has 4 already)");
  fs::remove_all(saves);
  CHECK(Run(model, shape, folder, {.resume = true}).status.message() ==
        "--resume: " + saves + ": has no checkpoint (one that --save wrote)");
}

TEST_CASE("one run saves into a folder, and clears what another has not finished") {
  const Folder folder;
  fs::create_directories(folder / "saves/.saving-00000007");
  auto mine = SaveFolder::Open(folder / "saves");
  REQUIRE(mine.ok());
  CHECK_FALSE(fs::exists(folder / "saves/.saving-00000007"));
  CHECK(SaveFolder::Open(folder / "saves").status().message() ==
        (folder / "saves") + ": another run is saving there (another folder)");
}

TEST_CASE("what is not of a checkpoint stays, and what has a lock's name is not written over") {
  const Folder folder;
  const std::string saves = folder / "saves", half = SavingFolder(saves, 7);
  const auto write = [](const std::string& path) { std::ofstream(path) << "precious"; };
  for (const std::string& path : {saves + "/.saving-thesis", half, SavingFolder(saves, 8)})
    fs::create_directories(path);
  write(saves + "/.saving-thesis/text");
  write(saves + "/.saving-notes");
  write(half + "/rank-0");
  write(half + "/mine");
  write(SavingFolder(saves, 8) + "/rank-0");
  fs::create_directory(folder / "elsewhere");
  write(folder / "elsewhere/rank-0");
  fs::create_directory_symlink(folder / "elsewhere", SavingFolder(saves, 9));
  { REQUIRE(SaveFolder::Open(saves).status().message() == ""); }
  CHECK(folder.List("saves") == std::vector<std::string>{".lock", ".saving-00000007",
                                                         ".saving-00000009", ".saving-notes",
                                                         ".saving-thesis"});
  CHECK(folder.List("saves/.saving-00000007") == std::vector<std::string>{"mine"});
  CHECK(folder.List("saves/.saving-thesis") == std::vector<std::string>{"text"});
  CHECK(folder.List("elsewhere") == std::vector<std::string>{"rank-0"});
  // Links of both kinds, and a file that no run has written.
  const std::string lock = saves + "/.lock", target = folder / "target";
  const auto refused = [&] {
    CHECK(SaveFolder::Open(saves).status().message() ==
          lock +
              ": is not what a run that saves there has written (another folder, or none of it)");
    CHECK(fs::file_size(fs::exists(target) ? target : lock) == 8);
    fs::remove(lock);
  };
  fs::remove(lock);
  write(lock);
  refused();
  write(target);
  fs::create_symlink(target, lock);
  refused();
  fs::create_hard_link(target, lock);
  refused();
  CHECK(SaveFolder::Open(saves).ok());
}

// The steps of the checkpoints in a folder, the first one first.
std::vector<int64_t> Kept(const Folder& folder) {
  std::vector<int64_t> steps = SavedSteps(folder / "saves");
  std::reverse(steps.begin(), steps.end());
  return steps;
}

// A training whose validation loss rises and falls; a validation after each step.
Steps Validated(const Folder& folder, int until, int64_t keep, int save_every) {
  const std::string data = folder.WriteText("val.txt", 333);
  return {.until = until,
          .save_every = save_every,
          .seed = 5,
          .learning_rate = 1,
          .options = [=](TrainOptions* t) {
            t->val_data = {data};
            t->val_every = 1;
            t->keep = keep;
            t->keep_best = true;
          }};
}

TEST_CASE("the last checkpoints are kept, and the best one") {
  constexpr int kSteps = 24;
  int besides = 0;  // runs whose best step is none of the last
  for (const Layout& shape : {Layout{"1f1b", 2}, Layout{"gpipe", 1, 2, 2}})
    for (const int64_t keep : {2, 5}) {
      INFO(shape.Text() << ", keeps " << keep);
      const Folder folder;
      const int every = 4;
      const Outcome run =
          Run(TinyModel(false), shape, folder, Validated(folder, kSteps, keep, every));
      REQUIRE(run.status.message() == "");
      REQUIRE(run.val_losses.size() == kSteps);
      std::vector<int64_t> saved;
      int64_t best = 0;
      double least = 0;
      for (int64_t step = 1; step <= kSteps; ++step) {
        const double loss = run.val_losses[step - 1];
        const bool is_best = best == 0 || loss < least;
        if (is_best) best = step, least = loss;
        if (is_best || step % every == 0) saved.push_back(step);
      }
      std::vector<int64_t> kept(saved.end() - keep, saved.end());
      if (std::find(kept.begin(), kept.end(), best) == kept.end()) {
        kept.insert(kept.begin(), best);
        ++besides;
      }
      CHECK(Kept(folder) == kept);
      REQUIRE(run.best.has_value());
      CHECK(run.best->step == best);
      CHECK(run.best->loss == least);
    }
  CHECK(besides > 0);
}

TEST_CASE("a training that continues keeps as many checkpoints") {
  const Layout shape = {"1f1b", 2};
  const Folder folder;
  Steps steps{.until = 6, .save_every = 1, .options = [](TrainOptions* t) { t->keep = 4; }};
  REQUIRE(Run(TinyModel(false), shape, folder, steps).status.message() == "");
  CHECK(Kept(folder) == std::vector<int64_t>{3, 4, 5, 6});
  steps.resume = true;
  steps.until = 7;
  REQUIRE(Run(TinyModel(false), shape, folder, steps).status.message() == "");
  CHECK(Kept(folder) == std::vector<int64_t>{4, 5, 6, 7});
}

TEST_CASE("a best checkpoint is believed only where it is comparable, and there") {
  const Layout shape = {"1f1b", 2};
  const auto begins_anew = [](const Outcome& run) {
    const bool said = std::any_of(run.notes.begin(), run.notes.end(), [](const std::string& note) {
      return note.starts_with("the best validation loss so far");
    });
    REQUIRE(run.best);
    CHECK(said == (run.best->step > 10));
    return said;
  };
  for (const char* change : {"nothing", "data", "batches", "gone"}) {
    INFO(change);
    const Folder folder;
    REQUIRE(Run(TinyModel(false), shape, folder, Validated(folder, 10, 2, 5)).status.ok());
    Steps on = Validated(folder, 12, 2, 5);
    on.resume = true;
    // A training that goes astray: what is best now was best before, unless that is not believed.
    on.learning_rate = 5;
    const std::string other = folder.WriteText("other.txt", 555), what = change;
    const auto options = on.options;
    on.options = [&](TrainOptions* t) {
      options(t);
      if (what == "data") t->val_data = {other};
      if (what == "batches") t->val_batches = 1;
    };
    if (what == "gone")
      for (const int64_t step : Kept(folder))
        if (step != 10) fs::remove_all(StepFolder(folder / "saves", step));
    const auto best = ReadManifest(StepFolder(folder / "saves", 10))->best;
    REQUIRE(best);
    if (what == "gone" && best->step == 10) continue;
    const Outcome run = Run(TinyModel(false), shape, folder, on);
    REQUIRE(run.status.message() == "");
    CHECK(begins_anew(run) == (what != "nothing"));
  }
}

TEST_CASE("a training that continues knows the best checkpoint of before") {
  const Layout shape = {"1f1b", 2};
  const Folder whole, parts;
  const Outcome run = Run(TinyModel(false), shape, whole, Validated(whole, 20, 2, 5));
  Steps first = Validated(parts, 10, 2, 5), second = Validated(parts, 20, 2, 5);
  second.resume = true;
  REQUIRE(Run(TinyModel(false), shape, parts, first).status.message() == "");
  const Outcome on = Run(TinyModel(false), {"gpipe", 4}, parts, second);
  REQUIRE(on.status.message() == "");
  REQUIRE((run.best && on.best));
  CHECK(on.best->step == run.best->step);
  CHECK(on.best->loss == run.best->loss);
  CHECK(Kept(parts) == Kept(whole));
}

}  // namespace
}  // namespace pp
