// Two ways to lay out the instructions of a plan, measured: a vector of structs, and columns. The
// figures at the head of schema/program.fbs come from here. Both are written and read with
// FlatBuffers as in schema/file.cc, checksum included; then file.cc's own functions follow.
//
//     bazel run //tests:layout_bench            10 million instructions
//     bazel run //tests:layout_bench -- 100000  another number
#include <fcntl.h>
#include <flatbuffers/flatbuffers.h>
#include <fmt/format.h>
#include <unistd.h>
#include <xxhash.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>

#include "schema/disk.h"
#include "schema/file.h"
#include "tests/sample_program.h"

namespace {

using pp::Instruction;
using List = std::vector<Instruction>;

constexpr int kDevices = 64;
constexpr int kInstructionsPerMicroBatch = 10;  // of a device in the middle

// The alternative: one record per instruction, as FlatBuffers lays out a struct.
struct alignas(8) Row {
  uint8_t op, value, sent, padding;
  int16_t bucket, pipe;
  int32_t stage, micro, peer;
  int64_t offset0, offset1;
};
static_assert(sizeof(Row) == 40);

// A device's list in the file: a table whose fields are the vectors.
using Vectors = std::vector<flatbuffers::uoffset_t>;
struct Layout {
  std::string name;
  std::function<Vectors(flatbuffers::FlatBufferBuilder&, const List&)> add;
  std::function<void(const flatbuffers::Table&, List*)> read;
};

constexpr flatbuffers::voffset_t FieldOf(size_t vector) {
  return static_cast<flatbuffers::voffset_t>(4 + 2 * vector);
}

Layout Structs() {
  Layout layout{.name = "structs"};
  layout.add = [](auto& builder, const List& list) {
    uint8_t* bytes = nullptr;
    builder.ForceVectorAlignment(list.size(), sizeof(Row), alignof(Row));
    const auto rows = builder.CreateUninitializedVector(list.size(), sizeof(Row), &bytes);
    for (const Instruction& i : list) {
      const Row row{static_cast<uint8_t>(i.op),
                    static_cast<uint8_t>(i.value),
                    i.sent,
                    0,
                    i.bucket,
                    i.pipe,
                    i.stage,
                    i.micro,
                    i.peer,
                    i.offset[0],
                    i.offset[1]};
      std::memcpy(bytes, &row, sizeof(row));
      bytes += sizeof(row);
    }
    return Vectors{rows};
  };
  layout.read = [](const flatbuffers::Table& table, List* list) {
    const auto* rows = table.GetPointer<const flatbuffers::Vector<uint8_t>*>(FieldOf(0));
    list->reserve(rows->size());
    for (size_t i = 0; i < rows->size(); ++i) {
      Row row;
      std::memcpy(&row, rows->Data() + i * sizeof(row), sizeof(row));
      list->push_back({.op = static_cast<pp::Op>(row.op),
                       .value = static_cast<pp::Kind>(row.value),
                       .sent = row.sent != 0,
                       .bucket = row.bucket,
                       .pipe = row.pipe,
                       .stage = row.stage,
                       .micro = row.micro,
                       .peer = row.peer,
                       .offset = {row.offset0, row.offset1}});
    }
  };
  return layout;
}

// One field of all instructions; left out if it has the default everywhere.
template <typename T, typename Get>
flatbuffers::uoffset_t AddColumn(flatbuffers::FlatBufferBuilder& builder, const List& list,
                                 Get get) {
  bool given = false;
  for (const Instruction& i : list) given |= get(i) != get(Instruction{});
  if (!given) return 0;
  T* out = nullptr;
  const auto column = builder.CreateUninitializedVector<T>(list.size(), &out);
  for (const Instruction& i : list) *out++ = static_cast<T>(get(i));
  return column.o;
}

template <typename T, typename Set>
void ReadColumn(const flatbuffers::Table& table, size_t vector, List* list, Set set) {
  const auto* column = table.GetPointer<const flatbuffers::Vector<T>*>(FieldOf(vector));
  if (column == nullptr) return;
  list->resize(column->size());
  for (size_t i = 0; i < column->size(); ++i) set((*list)[i], column->data()[i]);
}

Layout Columns() {
  using I = Instruction;
  Layout layout{.name = "columns"};
  layout.add = [](auto& b, const List& list) {
    return Vectors{AddColumn<uint8_t>(b, list, [](const I& i) { return static_cast<int>(i.op); }),
                   AddColumn<int32_t>(b, list, [](const I& i) { return i.stage; }),
                   AddColumn<int32_t>(b, list, [](const I& i) { return i.micro; }),
                   AddColumn<int32_t>(b, list, [](const I& i) { return i.peer; }),
                   AddColumn<uint8_t>(b, list, [](const I& i) { return i.value; }),
                   AddColumn<uint8_t>(b, list, [](const I& i) { return i.sent; }),
                   AddColumn<int16_t>(b, list, [](const I& i) { return i.bucket; }),
                   AddColumn<int16_t>(b, list, [](const I& i) { return i.pipe; }),
                   AddColumn<int64_t>(b, list, [](const I& i) { return i.offset[0]; }),
                   AddColumn<int64_t>(b, list, [](const I& i) { return i.offset[1]; })};
  };
  layout.read = [](const flatbuffers::Table& t, List* list) {
    ReadColumn<uint8_t>(t, 0, list, [](I& i, uint8_t n) { i.op = static_cast<pp::Op>(n); });
    ReadColumn<int32_t>(t, 1, list, [](I& i, int32_t n) { i.stage = n; });
    ReadColumn<int32_t>(t, 2, list, [](I& i, int32_t n) { i.micro = n; });
    ReadColumn<int32_t>(t, 3, list, [](I& i, int32_t n) { i.peer = n; });
    ReadColumn<uint8_t>(t, 4, list, [](I& i, uint8_t n) { i.value = static_cast<pp::Kind>(n); });
    ReadColumn<uint8_t>(t, 5, list, [](I& i, uint8_t n) { i.sent = n != 0; });
    ReadColumn<int16_t>(t, 6, list, [](I& i, int16_t n) { i.bucket = n; });
    ReadColumn<int16_t>(t, 7, list, [](I& i, int16_t n) { i.pipe = n; });
    ReadColumn<int64_t>(t, 8, list, [](I& i, int64_t n) { i.offset[0] = n; });
    ReadColumn<int64_t>(t, 9, list, [](I& i, int64_t n) { i.offset[1] = n; });
  };
  return layout;
}

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void Check(const pp::Status& status) {
  if (status.ok()) return;
  fmt::print(stderr, "{}\n", status.message());
  std::exit(1);
}

// Writes the lists in this layout, reads one back, and prints the times.
void Measure(const Layout& layout, const pp::Program& program, const std::string& path) {
  double start = Now();
  flatbuffers::FlatBufferBuilder builder(size_t{41} * program.devices *
                                         program.lists[1].body.size());
  std::vector<flatbuffers::Offset<flatbuffers::Table>> lists;
  for (const pp::DeviceList& list : program.lists) {
    const Vectors vectors = layout.add(builder, list.body);
    const auto table = builder.StartTable();
    for (size_t v = 0; v < vectors.size(); ++v) {
      if (vectors[v] == 0) continue;
      builder.AddOffset(FieldOf(v), flatbuffers::Offset<void>(vectors[v]));
    }
    lists.emplace_back(builder.EndTable(table));
  }
  const auto all = builder.CreateVector(lists);
  const auto root = builder.StartTable();
  builder.AddOffset(FieldOf(0), all);
  builder.Finish(flatbuffers::Offset<flatbuffers::Table>(builder.EndTable(root)));
  const std::string_view bytes(reinterpret_cast<const char*>(builder.GetBufferPointer()),
                               builder.GetSize());
  const uint64_t checksum = XXH3_64bits(bytes.data(), bytes.size());
  const double built = Now() - start;
  Check(pp::WriteWhole(path, {&bytes, 1}));
  const double wrote = Now() - start;

  start = Now();
  const auto file = pp::ReadWhole(path, "the file just written", int64_t{1} << 40);
  Check(file.status());
  const std::string_view read = *file;
  if (XXH3_64bits(read.data(), read.size()) != checksum) std::abort();
  const double summed = Now() - start;
  const auto* table = flatbuffers::GetRoot<flatbuffers::Table>(read.data());
  using Lists = flatbuffers::Vector<flatbuffers::Offset<flatbuffers::Table>>;
  List list;
  layout.read(*table->GetPointer<const Lists*>(FieldOf(0))->Get(kDevices / 2), &list);
  const double opened = Now() - start;
  if (list != program.lists[kDevices / 2].body) std::abort();
  fmt::print(
      "{:8}  file {:.0f} MB, build {:.2f} s, build and write {:.2f} s, open one device {:.3f} s, "
      "of which checksum {:.3f} s\n",
      layout.name, static_cast<double>(bytes.size()) / 1e6, built, wrote, opened, summed);
}

}  // namespace

int main(int argc, char** argv) {
  const int wanted = argc > 1 ? std::atoi(argv[1]) : 10'000'000;
  const int microbatches = std::max(1, wanted / kDevices / kInstructionsPerMicroBatch);
  const pp::Program program =
      pp::SampleProgram({.devices = kDevices, .microbatches = microbatches, .one_f_one_b = true});
  size_t count = 0;
  for (const pp::DeviceList& list : program.lists) count += list.body.size();
  fmt::print("{} instructions on {} devices\n", count, kDevices);

  const std::string path =
      (std::filesystem::temp_directory_path() / fmt::format("layout_bench.{}", getpid())).string();
  for (const Layout& layout : {Structs(), Columns()}) Measure(layout, program, path);

  double start = Now();
  Check(pp::Save(program, path));
  const double saved = Now() - start;
  start = Now();
  const auto one = pp::LoadDevice(path, kDevices / 2);
  Check(one.status());
  const double opened = Now() - start;
  start = Now();
  const auto all = pp::Load(path);
  Check(all.status());
  const double loaded = Now() - start;
  if (one->lists[kDevices / 2] != program.lists[kDevices / 2] || *all != program) std::abort();
  fmt::print("Save {:.2f} s, LoadDevice {:.3f} s, Load {:.2f} s, file {:.0f} MB\n", saved, opened,
             loaded, static_cast<double>(std::filesystem::file_size(path)) / 1e6);
  unlink(path.c_str());
}
