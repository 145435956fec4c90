#include "schema/format/file.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <vector>

#include "schema/program_generated.h"
#include "schema/proof/verify.h"
#include "schema/routines.h"
#include "tests/folder.h"
#include "tests/sample_program.h"

namespace {

namespace fs = std::filesystem;
using pp::Folder;
using pp::Instruction;
using pp::Program;

std::string Read(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void Write(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

// Two pipes, replicas, halves of backwards and a model: no field has its default everywhere.
Program Everything() {
  Program program = pp::SampleProgram({.devices = 2,
                                       .microbatches = 2,
                                       .pipes = 2,
                                       .backward = pp::SampleBackward::kHalves,
                                       .replicas = 3,
                                       .zero = 1,
                                       .model = true});
  program.passes = "apply-checkpoint,overlap-recompute";
  program.costs = *pp::ParseCosts("f=1,b=2.5");
  program.clip = false;
  program.rank_order = pp::RankOrder::kTpDpPp;
  program.job->model.tied = false;
  program.job->model.attention_dropout = 0.25f;
  program.job->tp = 2;
  program.job->sequence_parallel = true;
  program.job->recompute = {pp::OperatorKind::kNorm, pp::OperatorKind::kAttention};
  program.job->keep = {pp::OperatorKind::kGelu};
  program.job->documents = true;
  program.job->document_length = 2;
  for (Instruction& i : program.lists[0].body) {
    if (i.op != pp::Op::kBackwardInput) continue;
    i.version = 2;
    i.overlap = true;
  }
  program.overlaps = true;
  pp::AddRoutine(
      pp::EvaluationLike(program),
      {{}, {{.op = pp::Op::kEvaluate, .stage = 0, .micro = 1, .offset = {1, 2, 3}}}, {}, {}},
      &program);
  return program;
}

// Of a device whose lists were not asked for.
pp::DeviceList Unread(const Program& program) {
  return {.body = {}, .routines = std::vector<std::vector<Instruction>>(program.routines.size())};
}

// What Decode says about a modified sample program.
std::string ErrorOf(const std::function<void(Program&)>& change) {
  Program program =
      pp::SampleProgram({.devices = 4, .microbatches = 8, .one_f_one_b = true, .model = true});
  change(program);
  const auto bytes = pp::Encode(program);
  REQUIRE(bytes.ok());
  const auto decoded = pp::Decode(*bytes, "x.plan");
  REQUIRE(!decoded.ok());
  CHECK(decoded.status().code() == pp::Code::kInvalid);
  return decoded.status().message();
}

// Appends length and checksum to a FlatBuffer, as file.cc does.
std::string Seal(std::string flatbuffer) {
  const uint64_t seal[] = {flatbuffer.size(), XXH3_64bits(flatbuffer.data(), flatbuffer.size())};
  return flatbuffer.append(reinterpret_cast<const char*>(seal), sizeof(seal));
}

std::string Unsealed(const Program& program) {
  std::string bytes = *pp::Encode(program);
  return bytes.substr(0, bytes.size() - 16);
}

// A FlatBuffer made by hand: one device that loads micro-batch 0 of one, in format `format`.
struct HandArgs {
  uint32_t format = 4;
  std::vector<uint8_t> op = {1};
  std::vector<int32_t> micro = {0};
  std::vector<uint8_t> sent;
  int lists = 1;
  bool with_model = true;
};
std::string ByHand(const HandArgs& args) {
  namespace plan = pp::plan;
  flatbuffers::FlatBufferBuilder b;
  const std::vector<int32_t> stage(args.op.size(), 0), zero = {0};
  const auto list = plan::CreateInstructionsDirect(
      b, &args.op, &stage, &args.micro, nullptr, nullptr, args.sent.empty() ? nullptr : &args.sent);
  // All devices share one table.
  const std::vector<flatbuffers::Offset<plan::Device>> lists(args.lists,
                                                             plan::CreateDevice(b, 0, list));
  const std::vector<flatbuffers::Offset<plan::Pipe>> pipes = {plan::CreatePipeDirect(b, &zero)};
  const auto job = args.with_model ? flatbuffers::Offset<plan::Job>() : plan::CreateJob(b);
  b.Finish(plan::CreatePlanDirect(b, args.format, "1f1b", nullptr, plan::P2p_async, args.lists, 1,
                                  1, &pipes, &zero, job, &lists),
           plan::PlanIdentifier());
  return {reinterpret_cast<const char*>(b.GetBufferPointer()), b.GetSize()};
}

std::string HandError(const HandArgs& args) {
  return pp::DecodeUnsealed(ByHand(args), "x.plan").status().message();
}

}  // namespace

TEST_CASE("the sample programs are right") {
  using B = pp::SampleBackward;
  for (const pp::SampleArgs& args : {pp::SampleArgs{.devices = 1, .microbatches = 1},
                                     {.devices = 3, .stages_per_device = 2, .model = true},
                                     {.devices = 2, .p2p = pp::P2p::kBlocking},
                                     {.devices = 4, .microbatches = 4, .pipes = 2},
                                     {.devices = 2, .replicas = 2, .model = true},
                                     {.devices = 2, .pipes = 2, .zero = 1, .model = true},
                                     {.devices = 4, .pipes = 2, .zero = 1, .tied = {0, 2}},
                                     {.devices = 2, .stages_per_device = 2, .tied = {1, 2, 3}},
                                     {.devices = 2, .backward = B::kHalves, .one_f_one_b = true},
                                     {.devices = 2, .backward = B::kRecompute, .model = true}}) {
    const Program program = pp::SampleProgram(args);
    CHECK(pp::Verify(program, pp::Depth::kLists).message() == "");
    CHECK(pp::Verify(program, pp::Depth::kPlan).message() == "");
  }
}

TEST_CASE("a plan comes back as it was") {
  const Folder folder;
  const Program program = Everything();
  REQUIRE(pp::Save(program, folder / "x.plan").message() == "");
  CHECK(folder.List() == std::vector<std::string>{"x.plan"});
  const auto loaded = pp::Load(folder / "x.plan");
  REQUIRE(loaded.status().message() == "");
  CHECK(*loaded == program);
  CHECK(Read(folder / "x.plan") == *pp::Encode(program));  // same input, same bytes

  const Program small = pp::SampleProgram({.devices = 1, .microbatches = 1});
  REQUIRE(pp::Save(small, folder / "x.plan").ok());  // over the old one
  CHECK(*pp::Load(folder / "x.plan") == small);
  CHECK(folder.List() == std::vector<std::string>{"x.plan"});
}

TEST_CASE("one device's lists") {
  const Folder folder;
  const Program program = Everything();
  REQUIRE(pp::Save(program, folder / "x.plan").ok());
  for (int d : {0, 1}) {
    const auto one = pp::LoadDevice(folder / "x.plan", d);
    REQUIRE(one.status().message() == "");
    CHECK(one->lists[d] == program.lists[d]);
    CHECK(one->lists[1 - d] == Unread(program));
    CHECK(one->pipes == program.pipes);
  }
  CHECK(pp::LoadDevice(folder / "x.plan", 2).status().message() ==
        folder / "x.plan: device 2 (0 to 1)");
  CHECK(pp::LoadDevice(folder / "x.plan", -1).status().message() ==
        folder / "x.plan: device -1 (0 to 1)");
}

TEST_CASE("a rank's list, however ranks are numbered") {
  const Folder folder;
  Program program = Everything();
  for (const auto order : {pp::RankOrder::kTpPpDp, pp::RankOrder::kTpDpPp}) {
    program.rank_order = order;
    REQUIRE(pp::Save(program, folder / "x.plan").ok());
    const bool first = order == pp::RankOrder::kTpPpDp;
    const int devices[] = {0, 0, first ? 1 : 0, first ? 1 : 0, 0, 0,
                           1, 1, first ? 0 : 1, first ? 0 : 1, 1, 1};
    for (int rank = 0; rank < 12; ++rank) {
      INFO("rank " << rank);
      const auto one = pp::LoadRank(folder / "x.plan", rank);
      REQUIRE(one.status().message() == "");
      CHECK(one->lists[devices[rank]] == program.lists[devices[rank]]);
      CHECK(one->lists[1 - devices[rank]] == Unread(program));
    }
    CHECK(pp::LoadRank(folder / "x.plan", 12).ok());  // whoever starts that many says so
  }
}

TEST_CASE("a plan that is cut off anywhere is refused") {
  const std::string bytes = *pp::Encode(Everything());
  const auto error = [&](size_t length) {
    return pp::Decode(bytes.substr(0, length), "x.plan").status().message();
  };
  CHECK(error(0) == "x.plan: empty (a plan that pipec wrote)");
  CHECK(error(7) == "x.plan: not a plan (a plan that pipec wrote)");
  for (size_t length = 8; length < bytes.size(); ++length) {
    // A value inside may happen to be the length of what precedes it; its checksum is not.
    if (error(length).starts_with("x.plan: damaged: its bytes have the checksum")) continue;
    REQUIRE(error(length) == "x.plan: truncated or damaged: " + std::to_string(length) +
                                 " bytes without their length at the end (compile it again)");
  }
  CHECK(error(bytes.size()) == "");
  CHECK(!pp::Decode(bytes + '\0', "x.plan").ok());
}

TEST_CASE("a plan with any byte changed is refused") {
  std::string bytes = *pp::Encode(Everything());
  for (char& byte : bytes) {
    for (int change : {1, 0x80, 0xff}) {
      byte = static_cast<char>(byte ^ change);
      REQUIRE(!pp::Decode(bytes, "x.plan").ok());
      byte = static_cast<char>(byte ^ change);
    }
  }
  bytes[20] ^= 1;
  const std::string error = pp::Decode(bytes, "x.plan").status().message();
  CHECK(error.starts_with("x.plan: damaged: its bytes have the checksum "));
}

TEST_CASE("damage past the checksum never crashes") {
  std::string bytes = Unsealed(Everything());
  int refused = 0;
  for (char& byte : bytes) {
    for (int change : {1, 4, 0x80, 0xff}) {
      byte = static_cast<char>(byte ^ change);
      const auto program = pp::DecodeUnsealed(bytes, "x.plan");
      refused += !program.ok();
      byte = static_cast<char>(byte ^ change);
    }
  }
  CHECK(refused > 0);
  for (size_t length = 0; length < bytes.size(); ++length) {
    (void)pp::DecodeUnsealed(bytes.substr(0, length), "x.plan");
  }
}

TEST_CASE("older and newer files") {
  // A file without the columns and fields that came later: here, all that may be missing.
  const auto old = pp::DecodeUnsealed(ByHand({}), "x.plan");
  REQUIRE(old.status().message() == "");
  const Instruction load{.op = pp::Op::kLoad, .stage = 0, .micro = 0};
  CHECK(old->lists[0].body == std::vector<Instruction>{load});
  CHECK(pp::Decode(Seal(ByHand({})), "x.plan").ok());
  // What does not use a field is as it was before.
  CHECK(old->tied.empty());
  const std::string bytes = Unsealed(Everything());
  CHECK(pp::plan::GetPlan(bytes.data())->tied() == nullptr);

  CHECK(HandError({.format = 7}) ==
        "x.plan: written by a newer pipec (format 7; this one reads 6)");
  CHECK(HandError({.format = 2}) ==
        "x.plan: written by an older pipec (format 2; this one reads 3 to 6: compile it again)");
}

TEST_CASE("a model's plan of format 3 gets the region that came with format 4") {
  Program program = pp::SampleProgram({.devices = 2, .model = true});
  for (pp::DeviceList& list : program.lists)
    std::erase_if(list.regions, [](const pp::Region& r) { return r.kind == pp::Kind::kWorkspace; });
  std::string bytes = Unsealed(program);
  auto* plan = flatbuffers::GetMutableRoot<flatbuffers::Table>(bytes.data());
  REQUIRE(plan->SetField<uint32_t>(flatbuffers::FieldIndexToOffset(0), 3, 0));
  const auto loaded = pp::DecodeUnsealed(bytes, "x.plan");
  REQUIRE(loaded.status().message() == "");
  CHECK(loaded->lists[0].body == program.lists[0].body);
  CHECK(pp::Verify(*loaded, pp::Depth::kPlan).message() == "");
}

// Steps overlap where a list has sections; a rank that loads a list without such micro-batches
// alone knows it, too.
TEST_CASE("a plan of format 4 whose steps overlap") {
  const std::string path = "tests/schema/pipedream_format4.plan";
  const auto loaded = pp::Load(path);
  REQUIRE(loaded.status().message() == "");
  CHECK(loaded->overlaps);
  CHECK(pp::Verify(*loaded, pp::Depth::kPlan).message() == "");
  CHECK(*pp::DecodeUnsealed(Unsealed(*loaded), "x.plan") == *loaded);
  for (const int device : {0, 1}) {
    const auto part = pp::LoadDevice(path, device);
    REQUIRE(part.ok());
    CHECK(part->overlaps);
    CHECK(part->lists[device] == loaded->lists[device]);
  }
}

// Its evaluation has a field of its own there.
TEST_CASE("a plan of format 5 with an evaluation") {
  const auto loaded = pp::Load("tests/schema/chimera_format5.plan");
  REQUIRE(loaded.status().message() == "");
  REQUIRE(loaded->routines == std::vector{pp::EvaluationLike(*loaded)});
  CHECK(loaded->lists[1].routines[0].size() > 4);
  CHECK(pp::Verify(*loaded, pp::Depth::kLists).message() == "");
  CHECK(*pp::DecodeUnsealed(Unsealed(*loaded), "x.plan") == *loaded);
  const auto part = pp::LoadDevice("tests/schema/chimera_format5.plan", 1);
  REQUIRE(part.ok());
  CHECK(part->lists[1] == loaded->lists[1]);
}

TEST_CASE("FlatBuffers that pipec does not write") {
  CHECK(HandError({.op = {1, 2}}) ==
        "x.plan: device 0: column 'micro' has 1 entries (as many as 'op', 2)");
  CHECK(HandError({.sent = {2}}) == "x.plan: device 0: instruction 0: sent 2 (0 or 1)");
  CHECK(HandError({.with_model = false}) == "x.plan: a job without a model (both or neither)");
  // A thousand devices that all have the same list of a thousand instructions.
  CHECK(HandError({.op = std::vector<uint8_t>(1000, 1),
                   .micro = std::vector<int32_t>(1000, 0),
                   .lists = 1000}) ==
        "x.plan: device 12: damaged inside: lists overlap (a plan that pipec wrote)");
  CHECK(pp::DecodeUnsealed("\x10\0\0\0PIPE????????????", "x.plan").status().message() ==
        "x.plan: not a plan (a plan that pipec wrote)");
  CHECK(pp::DecodeUnsealed(std::string("\xff\0\0\0PIPE", 8), "x.plan").status().message() ==
        "x.plan: damaged inside (a plan that pipec wrote)");
}

TEST_CASE("instructions whose numbers make no sense") {
  const auto error = [](const std::function<void(Instruction&)>& change) {
    return ErrorOf([&](Program& p) { change(p.lists[3].body[2]); });
  };
  const std::string at = "x.plan: device 3, instruction 2: ";
  const auto load = [](Instruction& i) { i = {.op = pp::Op::kLoad, .stage = 3, .micro = 0}; };
  const auto wait = [](Instruction& i) { i = {.op = pp::Op::kWait}; };
  CHECK(error([&](auto& i) { load(i), i.micro = 9; }) == at + "micro 9 (0 to 7)");
  CHECK(error([&](auto& i) { load(i), i.micro = -1; }) == at + "micro -1 (0 to 7)");
  CHECK(error([&](auto& i) { load(i), i.stage = 4; }) == at + "stage 4 (0 to 3)");
  CHECK(error([&](auto& i) { load(i), i.peer = 1; }) == at + "LOAD with peer 1 (it has none)");
  CHECK(error([&](auto& i) { load(i), i.sent = true; }) == at + "LOAD with 'sent' (it has none)");
  CHECK(error([&](auto& i) { load(i), i.value = pp::Kind::kAct; }) ==
        at + "LOAD with value 3 (it has none)");
  CHECK(error([&](auto& i) { load(i), i.op = static_cast<pp::Op>(99); }) ==
        at + "unknown op 99 (1 to 20)");
  CHECK(error([&](auto& i) { wait(i); }) ==
        at + "WAIT for kind of value 0 (act, grad, wgrad, tied, norm or weights)");
  CHECK(error([&](auto& i) { wait(i), i.value = pp::Kind::kNorm, i.stage = 0; }) ==
        at + "WAIT with stage 0 (it has none)");
  CHECK(error([&](auto& i) { wait(i), i.value = pp::Kind::kTied, i.sent = true; }) ==
        at + "WAIT with 'sent' (it has none)");
  CHECK(error([&](auto& i) { i = {.op = pp::Op::kSendAct, .stage = 0, .micro = 0, .peer = 3}; }) ==
        at + "peer 3 is the device itself (another one)");
  CHECK(error([&](auto& i) { i = {.op = pp::Op::kSendAct, .stage = 0, .micro = 0, .peer = 4}; }) ==
        at + "peer 4 (0 to 3)");
  CHECK(error([&](auto& i) { i = {.op = pp::Op::kStep, .pipe = 1, .stage = 0}; }) ==
        at + "pipe 1 (0 to 0)");
  CHECK(error([&](auto& i) { i = {.op = pp::Op::kReduceGrad, .bucket = -1, .stage = 0}; }) ==
        at + "bucket -1 (0 to 32766)");
  CHECK(
      ErrorOf([](Program& p) {
        p.lists[0].arena_bytes = 1 << 20;
        p.lists[0].body[0].offset[1] = 1 << 21;
      }) ==
      "x.plan: device 0, instruction 0: offset 2097152 (inside the arena of 1048576 bytes, or -1)");
  CHECK(ErrorOf([](Program& p) {
          p.lists[0].arena_bytes = 1 << 20;
          p.lists[0].body[0].offset[0] = -2;
        }) ==
        "x.plan: device 0, instruction 0: offset -2 (inside the arena of 1048576 bytes, or -1)");
}

TEST_CASE("plans whose numbers make no sense") {
  CHECK(
      ErrorOf([](Program& p) { p.scheme = "two words"; }) ==
      "x.plan: the name of the scheme is not a word: 'two words' (printable, without space and #)");
  CHECK(ErrorOf([](Program& p) { p.passes = "a\nb"; }) ==
        "x.plan: the name of the passes is not a word: 'a\\nb' (printable, without space and #)");
  CHECK(ErrorOf([](Program& p) { p.scheme = ""; }) == "x.plan: no scheme (its name)");
  CHECK(ErrorOf([](Program& p) { p.p2p = static_cast<pp::P2p>(7); }) ==
        "x.plan: --p2p: is 7 (async, blocking)");
  CHECK(ErrorOf([](Program& p) { p.rank_order = static_cast<pp::RankOrder>(2); }) ==
        "x.plan: --rank-order: is 2 (tp,pp,dp, tp,dp,pp)");
  CHECK(ErrorOf([](Program& p) { p.devices = 0; }) == "x.plan: 0 devices (1 to 16777216)");
  CHECK(ErrorOf([](Program& p) { p.stages = -1; }) == "x.plan: -1 stages (1 to 16777216)");
  CHECK(ErrorOf([](Program& p) { p.microbatches = 0; }) ==
        "x.plan: 0 micro-batches (1 to 16777216)");
  CHECK(ErrorOf([](Program& p) { p.microbatches = 9; }) == "x.plan: pipe_of has 8 numbers (9)");
  CHECK(ErrorOf([](Program& p) { p.lists.pop_back(); }) ==
        "x.plan: 3 lists for 4 devices (one per device)");
  CHECK(ErrorOf([](Program& p) { p.pipes.clear(); }) == "x.plan: 0 pipes (1 to 32767)");
  CHECK(ErrorOf([](Program& p) {
          p.pipes.push_back({{1, 0, 2, 3}});
        }) == "x.plan: pipes 0 and 1 both place stage 2 on device 2 (a device holds a stage once)");
  CHECK(ErrorOf([](Program& p) { p.pipes[0].device_of[1] = 4; }) ==
        "x.plan: device_of of pipe 0: number 1 is 4 (0 to 3)");
  CHECK(ErrorOf([](Program& p) {
          p.tied = {0, 3};
        }) == "x.plan: 'tied 0 3' beside a model (which says it itself)");
  CHECK(ErrorOf([](Program& p) {
          p.job.reset();
          p.tied = {0, 4};
        }) == "x.plan: 'tied 0 4' (two or more of the stages 0 to 3, ascending)");
  CHECK(ErrorOf([](Program& p) { p.pipe_of[2] = 1; }) == "x.plan: pipe_of: number 2 is 1 (0 to 0)");
  CHECK(ErrorOf([](Program& p) { p.job->layers_per_stage.pop_back(); }) ==
        "x.plan: layers_per_stage has 3 numbers (4)");
  CHECK(ErrorOf([](Program& p) { p.job->model.heads = 3; }) ==
        "x.plan: model: n_embd is 8, which n_head 3 does not divide (1, 2, 4, 8 would)");
  CHECK(ErrorOf([](Program& p) { p.lists[2].arena_bytes = -1; }) ==
        "x.plan: device 2: an arena of -1 bytes (0 to 2^62)");
  CHECK(ErrorOf([](Program& p) { p.lists[2].regions[0].kind = static_cast<pp::Kind>(99); }) ==
        "x.plan: device 2, region 0: unknown kind of value 99 (1 to 17)");
  CHECK(ErrorOf([](Program& p) { p.lists[2].regions[0].stage = 4; }) ==
        "x.plan: device 2, region 0: stage 4 (0 to 3, or -1)");
  CHECK(ErrorOf([](Program& p) {
          p.lists[2].arena_bytes = 1 << 20;
          p.lists[2].regions[0].offset = 0;
          p.lists[2].regions[0].bytes = INT64_MAX;
        }) ==
        "x.plan: device 2, region 0: 9223372036854775807 bytes at 0 (inside the arena of 1048576)");
}

TEST_CASE("a plan that is too large") {
  const auto error = pp::Encode(Everything(), /*most_bytes=*/1000).status();
  CHECK(error.code() == pp::Code::kInvalid);
  CHECK_THAT(error.message(),
             Catch::EndsWith("(a plan file has at most 1000: fewer micro-batches or devices)"));
  CHECK_THAT(error.message(), Catch::Contains("instructions take up to"));
}

TEST_CASE("files that cannot be read") {
  const Folder folder;
  const auto error = [&](const std::string& path) { return pp::Load(path).status().message(); };
  const std::string missing = folder / "missing.plan";
  CHECK(error(missing) ==
        missing + ": cannot be read: No such file or directory (a plan that pipec wrote)");
  CHECK(error(folder / ".") == folder / ".: is a directory (a plan that pipec wrote)");
  CHECK(error("/dev/null") == "/dev/null: is not a regular file (a plan that pipec wrote)");
  Write(folder / "empty.plan", "");
  CHECK(error(folder / "empty.plan") == folder / "empty.plan: empty (a plan that pipec wrote)");
  Write(folder / "text", "program 1f1b stages 2 microbatches 4\n");
  CHECK(error(folder / "text") ==
        folder / "text: not a plan but lists in text form (what pipec import makes of them)");
  Write(folder / "text", "any other text\n");
  CHECK(error(folder / "text") == folder / "text: not a plan (a plan that pipec wrote)");
}

TEST_CASE("a file larger than any plan is not read") {
  const Folder folder;
  Write(folder / "huge.plan", "");
  fs::resize_file(folder / "huge.plan", int64_t{1} << 40);
  CHECK(pp::Load(folder / "huge.plan").status().message() ==
        folder / "huge.plan: 1099511627776 bytes (a plan that pipec wrote of at most 2147483632)");
}

// What ranks compare, so that all of them run the same plan.
TEST_CASE("the checksum of a plan is that of the bytes that were read") {
  const Folder folder;
  const Program program = Everything();
  REQUIRE(pp::Save(program, folder / "x.plan").ok());
  const std::string bytes = Read(folder / "x.plan");
  uint64_t at_end = 0;
  std::memcpy(&at_end, bytes.data() + bytes.size() - sizeof at_end, sizeof at_end);
  uint64_t all = 0, one = 1;
  REQUIRE(pp::Load(folder / "x.plan", &all).ok());
  REQUIRE(pp::LoadRank(folder / "x.plan", 3, &one).ok());
  CHECK(all == at_end);
  CHECK(one == at_end);
  // Another list than the rank's own.
  Program other = program;
  other.lists[1].body[0].offset[0] += 1;
  REQUIRE(pp::Save(other, folder / "x.plan").ok());
  REQUIRE(pp::LoadRank(folder / "x.plan", 0, &one).ok());
  CHECK(one != at_end);
}

TEST_CASE("paths that cannot be written") {
  const Folder folder;
  const Program program = Everything();
  const std::string lost = folder / "no/such.plan";
  CHECK(pp::Save(program, lost).message() ==
        lost +
            ": cannot be written: No such file or directory (a file name in a folder that "
            "exists and may be written to)");
  CHECK(pp::Save(program, lost).code() == pp::Code::kInvalid);
  CHECK(pp::Save(program, folder / ".").message() ==
        folder / ".: is a directory (the name of a file)");
  // An existing file stays as it was.
  Write(folder / "keep", "kept");
  chmod((folder / "keep").c_str(), 0444);
  if (access((folder / "keep").c_str(), W_OK) != 0) {  // root may do everything
    CHECK(!pp::Save(program, folder / "keep").ok());
    CHECK(Read(folder / "keep") == "kept");
  }
  // A link continues to point to its file.
  Write(folder / "file.plan", "");
  REQUIRE(symlink("file.plan", (folder / "link.plan").c_str()) == 0);
  REQUIRE(pp::Save(program, folder / "link.plan").ok());
  CHECK(fs::is_symlink(folder / "link.plan"));
  CHECK(*pp::Load(folder / "file.plan") == program);
}

TEST_CASE("a full disk") {
  const Folder folder;
  const Program program = Everything();
  const pp::Status full = pp::Save(program, "/dev/full");
  CHECK(full.code() == pp::Code::kFailed);
  CHECK_THAT(full.message(), Catch::StartsWith("/dev/full: No space left on device ("));
  CHECK(fs::is_character_file("/dev/full"));

  // At a file size limit, the old plan stays, and nothing else.
  Write(folder / "x.plan", "old");
  rlimit unlimited;
  REQUIRE(getrlimit(RLIMIT_FSIZE, &unlimited) == 0);
  const rlimit little{1000, unlimited.rlim_max};
  const auto before = std::signal(SIGXFSZ, SIG_IGN);
  REQUIRE(setrlimit(RLIMIT_FSIZE, &little) == 0);
  const pp::Status limited = pp::Save(program, folder / "x.plan");
  REQUIRE(setrlimit(RLIMIT_FSIZE, &unlimited) == 0);
  std::signal(SIGXFSZ, before);
  CHECK(limited.code() == pp::Code::kFailed);
  CHECK_THAT(limited.message(), Catch::StartsWith(folder / "x.plan: File too large ("));
  CHECK(Read(folder / "x.plan") == "old");
  CHECK(folder.List() == std::vector<std::string>{"x.plan"});
}

TEST_CASE("flatc opens a plan with the schema") {
  const Folder folder;
  REQUIRE(pp::Save(Everything(), folder / "x.plan").ok());
  const std::string command = "flatc --json --strict-json --raw-binary -o " + (folder / "") +
                              " schema/program.fbs -- " + (folder / "x.plan");
  REQUIRE(std::system(command.c_str()) == 0);
  const std::string json = Read(folder / "x.json");
  CHECK_THAT(json, Catch::Contains("\"scheme\": \"sample\""));
  CHECK_THAT(json, Catch::Contains(R"(\"n_embd\":8,)"));
  CHECK_THAT(json, Catch::Contains("\"device_of\": ["));
}
