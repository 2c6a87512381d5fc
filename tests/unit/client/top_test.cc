#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "client/output/text.h"
#include "client/top/picture.h"
#include "client/top/plot.h"
#include "client/top/view.h"
#include "common/base/json.h"
#include "tests/unit/client/fake_server.h"

namespace sft::client::top {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(PictureTest, TextIsCutToColumnsAndNotToBytes) {
  EXPECT_EQ(Fit("abc", 5), "abc  ");
  EXPECT_EQ(Fit("abc", 5, Align::kRight), "  abc");
  EXPECT_EQ(Fit("abcdef", 4), "abc…");
  EXPECT_EQ(Fit("äöü", 3), "äöü");
  EXPECT_EQ(Fit("模型模型", 5), "模型…");
  EXPECT_EQ(Fit("模型模型", 4), "模… ") << "half of a wide character is not drawn";
  EXPECT_EQ(Fit("abc", 1), "…");
  EXPECT_EQ(Fit("abc", 0), "");
  EXPECT_EQ(Fit("abc", -3), "");
}

TEST(PictureTest, ControlCharactersAreShownAndNotSent) {
  EXPECT_THAT(Fit("\x1b[31mred\x07", 40), Not(HasSubstr("\x1b")));
  EXPECT_THAT(Safe("a\x1b]0;title\x07").text, HasSubstr("a\\x1b]0;title\\x07"));
  EXPECT_THAT(Safe("\xff\xfe").text, HasSubstr("\\xff"));
  EXPECT_EQ(Safe("a\nb\tc").text, "a b c");
}

TEST(PictureTest, ATerminalOfAsciiGetsAscii) {
  const std::vector<Row> rows = {{{"näme 模 a…"}, {"   "}}};
  EXPECT_EQ(PlainText(rows, true), "näme 模 a…\n");
  EXPECT_EQ(PlainText(rows, false), "n?me ?? a~\n");
}

TEST(PictureTest, ANarrowGridLeavesColumnsOut) {
  const std::vector<Column> columns = {
      {"A", 3}, {"B", 4, Align::kLeft, 20}, {"LAST", 5, Align::kLeft}};
  const Grid wide(columns, 24), narrow(columns, 12);
  EXPECT_EQ(PlainText({wide.Line({{"1"}, {"2"}, {"three"}})}, true), "1   2    three\n");
  EXPECT_EQ(PlainText({narrow.Head(), narrow.Line({{"1"}, {"2"}, {"three and more"}})}, true),
            "A   LAST\n1   three a…\n");
}

PlotOptions Options(int width, int height, bool unicode) {
  return {.width = width,
          .height = height,
          .unicode = unicode,
          .x_text = [](double x) { return std::to_string(std::lround(x)); },
          .y_text = [](double y) { return std::to_string(std::lround(y)); }};
}

TEST(PlotTest, DrawsLinesBetweenTheLeastAndTheMostOfBothAxes) {
  EXPECT_EQ(PlainText(Plot({{{0, 10}, {0, 9}}}, Options(12, 6, false)), false),
            "9|        .'\n"
            " |      .'\n"
            " |    .'\n"
            " |  .'\n"
            "0|.'\n"
            "  0       10\n");
  const std::string braille = PlainText(Plot({{{0, 10}, {0, 9}}}, Options(8, 4, true)), true);
  EXPECT_THAT(braille, HasSubstr("⡠"));
  for (const Row& row : Plot({{{0, 10}, {0, 9}}}, Options(8, 4, true))) {
    EXPECT_LE(ColumnsOf(row), 8);
  }
}

TEST(PlotTest, AFlatLineALonePointGapsAndNothing) {
  const float none = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT(PlainText(Plot({{{1, 2}, {5, 5}}}, Options(20, 5, false)), false), HasSubstr("''''"));
  EXPECT_THAT(PlainText(Plot({{{3}, {5}}}, Options(20, 5, false)), false), HasSubstr("5"));
  // Nothing is drawn over a gap.
  const std::string gap =
      PlainText(Plot({{{0, 1, 2, 3}, {0, 0, none, 9}}}, Options(24, 5, false)), false);
  EXPECT_EQ(std::count(gap.begin(), gap.end(), '\''), 1) << gap;
  for (const auto& curves : {std::vector<PlotCurve>(), {PlotCurve{{1}, {none}}}}) {
    const auto rows = Plot(curves, Options(20, 5, true));
    EXPECT_EQ(rows.size(), 5u);
    EXPECT_THAT(PlainText(rows, true), HasSubstr("no points yet"));
  }
  EXPECT_EQ(Plot({{{1, 2}, {1, 2}}}, Options(3, 5, true)).size(), 5u) << "too narrow";
}

v1::Job Running(const std::string& id, const std::string& name) {
  v1::Job job = MakeJob(id, v1::Job::RUNNING);
  job.set_name("projects/default/jobs/" + id);
  job.set_display_name(name);
  job.set_owner("ann");
  job.set_variant("H100-4x");
  job.mutable_progress()->set_step(30);
  job.mutable_progress()->set_total_steps(40);
  job.mutable_progress()->set_loss(1.25);
  job.mutable_progress()->set_tokens_per_second(1500);
  job.mutable_progress()->set_eta_seconds(75);
  return job;
}

class ViewTest : public testing::Test {
 protected:
  ViewTest() {
    view_.server = "127.0.0.1:7070";
    snapshot_.status = absl::OkStatus();
    snapshot_.time = FromUnixMicros(int64_t{1'700'000'000} * 1'000'000);
    snapshot_.jobs = {Running("job-a", "first"), Running("job-b", "second")};
    snapshot_.jobs.push_back(MakeJob("job-c", v1::Job::PENDING));
    snapshot_.jobs[2].set_name("projects/default/jobs/job-c");
    snapshot_.jobs[2].set_reason("waits for H100-4x: 2 of 4 are free");
    snapshot_.active = 3;
    v1::Node& node = snapshot_.nodes.emplace_back();
    node.set_name("nodes/gpu-01");
    node.set_state(v1::Node::UP);
    for (int i = 0; i < 2; ++i) {
      v1::Slot& slot = *node.add_slots();
      slot.set_index(i);
      slot.set_gpu_type("H100");
      slot.set_healthy(true);
      slot.set_memory_bytes(80'000'000'000);
      slot.set_memory_used_bytes(i == 0 ? 60'000'000'000 : 0);
      slot.set_utilization_percent(i == 0 ? 97 : 0);
      if (i == 0) slot.set_job("projects/default/jobs/job-a");
    }
  }

  std::string Text(int width = 80, int height = 24) {
    const std::vector<Row> rows = Draw(view_, snapshot_, {width, height, true});
    EXPECT_EQ(static_cast<int>(rows.size()), height);
    for (const Row& row : rows) EXPECT_LE(ColumnsOf(row), width);
    return PlainText(rows, true);
  }
  Next Key(int key) { return OnKey(key, snapshot_, 24, view_); }
  void Keys(const std::string& text) {
    for (const char key : text) (void)Key(key);
  }
  // The row that is drawn as selected.
  std::string Selected() {
    for (const Row& row : Draw(view_, snapshot_, {80, 24, true})) {
      if (!row.empty() && row[0].style == Style::kSelected) return row[0].text.substr(0, 12);
    }
    return "";
  }
  void Answer() { snapshot_.query = view_.query; }
  void OpenJob() {
    EXPECT_EQ(Key(keys::kEnter), Next::kAsk);
    snapshot_.job = snapshot_.jobs[0];
    Answer();
  }

  View view_;
  Snapshot snapshot_;
};

TEST_F(ViewTest, JobsAreListedWithWhatTheyDoOrWaitFor) {
  const std::string text = Text();
  EXPECT_THAT(text, HasSubstr("sftctl top  [1 Jobs]"));
  EXPECT_THAT(text, HasSubstr("127.0.0.1:7070  live"));
  EXPECT_THAT(text, HasSubstr("3 active and 0 ended jobs, by submitted; 1 of 2 slots busy; "
                              "1 of 1 nodes up"));
  EXPECT_THAT(text, HasSubstr("job-a          first         RUNNING"));
  EXPECT_THAT(text, HasSubstr(" 75% loss 1.250 1m15s left, 1…"));
  EXPECT_THAT(Text(120), HasSubstr(" 75% loss 1.250 1m15s left, 1.5k tok/s"));
  EXPECT_THAT(Text(120), HasSubstr("waits for H100-4x: 2 of 4 are free"));
  EXPECT_THAT(text, HasSubstr("q quit  ? keys  / filter  s sort"));
}

TEST_F(ViewTest, RowsAreSelectedByNameWhateverComesBetween) {
  EXPECT_EQ(Selected(), "job-a       ");
  EXPECT_EQ(Key('j'), Next::kDraw);
  EXPECT_EQ(Selected(), "job-b       ");
  snapshot_.jobs.insert(snapshot_.jobs.begin(), Running("job-new", "newer"));
  EXPECT_EQ(Selected(), "job-b       ");
  (void)Key('G');
  EXPECT_EQ(Selected(), "job-c       ");
  (void)Key(keys::kDown);
  EXPECT_EQ(Selected(), "job-c       ");
  (void)Key(keys::kPageUp);
  EXPECT_EQ(Selected(), "job-new     ");
  snapshot_.jobs.clear();
  EXPECT_EQ(Selected(), "");
  (void)Key('j');
  EXPECT_THAT(Text(), HasSubstr("There is no job yet"));
}

TEST_F(ViewTest, ALongListIsScrolledSoThatTheSelectedRowIsSeen) {
  snapshot_.jobs.clear();
  for (int i = 0; i < 200; ++i) snapshot_.jobs.push_back(Running(fmt::format("job-{:03}", i), ""));
  EXPECT_THAT(Text(), HasSubstr("job-000"));
  (void)Key('G');
  EXPECT_THAT(Text(), HasSubstr("job-199"));
  EXPECT_THAT(Text(), Not(HasSubstr("job-000")));
  EXPECT_THAT(Text(), HasSubstr("q quit"));
  (void)Key('g');
  EXPECT_EQ(Selected(), "job-000     ");
}

TEST_F(ViewTest, HostileNamesAreShownAsTextAndKeepTheirColumn) {
  snapshot_.jobs[0].set_display_name("\x1b[2J\x1b]0;x\x07模型");
  snapshot_.jobs[0].set_owner(std::string("a\0b", 3));
  snapshot_.jobs[2].set_reason(
      "\r\nBAD\x9b"
      "31m");
  snapshot_.nodes[0].set_unusable("\x1b[41mred");
  for (const int key : {'1', '2', '3'}) {
    (void)Key(key);
    Answer();
    const std::string text = Text(200);
    for (const char letter : text) EXPECT_TRUE(letter == '\n' || (letter & 0xe0) != 0) << text;
    EXPECT_THAT(text, Not(HasSubstr("\x9b")));
  }
  EXPECT_THAT(Text(200), HasSubstr("BAD"));
}

TEST_F(ViewTest, NoWindowIsTooSmall) {
  snapshot_.job = snapshot_.jobs[0];
  for (const Page page : {Page::kJobs, Page::kNodes, Page::kQueue, Page::kJob}) {
    view_.query.page = page;
    Answer();
    for (const Tab tab : {Tab::kCurve, Tab::kRanks, Tab::kLog, Tab::kEvents}) {
      view_.query.tab = tab;
      for (const int width : {1, 2, 10, 20, 39, 80, 300}) {
        for (const int height : {1, 2, 3, 5, 8, 24, 100}) (void)Text(width, height);
      }
    }
  }
}

TEST_F(ViewTest, NodesHaveTheirGpusAndOpenTheirJobs) {
  EXPECT_EQ(Key('2'), Next::kAsk);
  Answer();
  const std::string text = Text();
  EXPECT_THAT(text, HasSubstr("gpu-01"));
  EXPECT_THAT(text, HasSubstr("H100       job-a          [########  ]"));
  EXPECT_THAT(text, HasSubstr("60.0 GB   97%"));
  EXPECT_THAT(text, HasSubstr("free"));
  EXPECT_EQ(Key(keys::kEnter), Next::kDraw) << "a node is no job";
  (void)Key('j');
  EXPECT_EQ(Key(keys::kEnter), Next::kAsk);
  EXPECT_EQ(view_.query.job, "projects/default/jobs/job-a");
  EXPECT_EQ(Key(keys::kEscape), Next::kAsk);
  EXPECT_EQ(view_.query.page, Page::kNodes) << "back to where it was opened";
}

TEST_F(ViewTest, TheFilterIsTypedTakenAndCleared) {
  Keys("/state=running q1");
  EXPECT_THAT(Text(), HasSubstr("filter: state=running q1_"));
  (void)Key(keys::kBackspace);
  (void)Key(0xe4);  // ä
  (void)Key(0x6a21);
  (void)Key(keys::kBackspace);
  EXPECT_EQ(view_.typed, "state=running qä");
  (void)Key(keys::kBackspace);
  EXPECT_EQ(view_.query.filter, "");
  EXPECT_EQ(Key(keys::kEnter), Next::kAsk);
  EXPECT_EQ(view_.query.filter, "state=running q");
  EXPECT_THAT(Text(200), HasSubstr("filter: state=running q"));
  Keys("/zzz");
  EXPECT_EQ(Key(keys::kEscape), Next::kDraw);
  EXPECT_EQ(view_.query.filter, "state=running q") << "left as it was";
  EXPECT_EQ(Key(keys::kEscape), Next::kAsk);
  EXPECT_EQ(view_.query.filter, "");
}

TEST_F(ViewTest, AFilterIsPassedOnAsItIs) {
  view_.query.filter = "state=running two words";
  const v1::ListJobsRequest request = RequestOf(view_.query);
  EXPECT_EQ(request.filter(), "state=running two words");
  EXPECT_EQ(request.states_size(), 0);
  EXPECT_THAT(request.fields(), ::testing::Contains("outlook"));
  view_.query.whole = true;
  EXPECT_EQ(RequestOf(view_.query).fields_size(), 0);
}

TEST_F(ViewTest, ActionsAskOnceAndAreNamedAsCommands) {
  (void)Key('c');
  EXPECT_THAT(Text(), HasSubstr("sftctl cancel job-a  really? y yes, n no"));
  EXPECT_EQ(Key('n'), Next::kDraw);
  EXPECT_EQ(view_.mode, View::Mode::kLook);
  (void)Key('c');
  EXPECT_EQ(Key('y'), Next::kAct);
  EXPECT_EQ(view_.action.Command(), "sftctl cancel job-a");
  EXPECT_EQ(view_.action.job, "projects/default/jobs/job-a");
  (void)Key('h');
  EXPECT_THAT(Text(), HasSubstr("job-a does not wait: only a waiting job can be held"));
  (void)Key('r');
  EXPECT_THAT(Text(), HasSubstr("job-a is not held"));
  (void)Key('G');
  (void)Key('h');
  EXPECT_THAT(Text(), HasSubstr("sftctl hold job-c"));
  (void)Key(keys::kEscape);
  snapshot_.jobs[2].set_state(v1::Job::SUCCEEDED);
  (void)Key('c');
  EXPECT_THAT(Text(), HasSubstr("job-c has ended"));
}

TEST_F(ViewTest, AJobShowsItsCurveWithValuesAndZoom) {
  OpenJob();
  v1::CurveSeries& loss = *snapshot_.curve.add_series();
  loss.set_name("loss");
  for (int i = 1; i <= 40; ++i) {
    loss.add_x(i);
    loss.add_y(4.0F - 0.05F * static_cast<float>(i));
  }
  loss.set_points(40);
  snapshot_.curve.set_first_x(1);
  snapshot_.curve.set_last_x(41);
  EXPECT_THAT(Text(), HasSubstr("first  job-a  RUNNING"));
  EXPECT_THAT(Text(), HasSubstr("30/40  loss 1.2500"));
  EXPECT_THAT(Text(), HasSubstr("[v curve] m ranks  l log  e events"));
  EXPECT_THAT(Text(), HasSubstr("loss 2 at step 40"));
  EXPECT_THAT(Text(), HasSubstr("3.95|"));
  loss.set_points(100'000);
  loss.set_parts(200);
  EXPECT_THAT(Text(), HasSubstr("(100000 points, lowest and highest of 200 parts)"));
  EXPECT_EQ(Key('+'), Next::kAsk);
  EXPECT_EQ(view_.query.begin, 21);
  EXPECT_EQ(view_.query.end, 41);
  EXPECT_EQ(Key('['), Next::kAsk);
  EXPECT_EQ(view_.query.begin, 11);
  EXPECT_EQ(view_.query.end, 31);
  (void)Key(']');
  (void)Key(']');
  EXPECT_EQ(view_.query.end, 41) << "not beyond the curve";
  EXPECT_EQ(Key('-'), Next::kAsk);
  EXPECT_FALSE(view_.query.begin.has_value());
  EXPECT_EQ(Key(keys::kRight), Next::kAsk);
  EXPECT_EQ(view_.query.value, "val_loss");
  EXPECT_EQ(Key(keys::kLeft), Next::kAsk);
  EXPECT_EQ(Key(keys::kLeft), Next::kAsk);
  EXPECT_EQ(view_.query.value, "gpu_memory_bytes");
  EXPECT_EQ(Key('s'), Next::kDraw);
  EXPECT_THAT(Text(), HasSubstr("sftctl checkpoint job-a"));
}

TEST_F(ViewTest, AJobShowsItsRanksItsLogAndItsEvents) {
  OpenJob();
  EXPECT_EQ(Key('m'), Next::kAsk);
  EXPECT_THAT(Text(), HasSubstr("No rank has told of its own loss yet."));
  for (const char* name : {"rank_loss", "rank_memory"}) {
    for (int rank = 0; rank < 2; ++rank) {
      v1::CurveSeries& series = *snapshot_.curve.add_series();
      series.set_name(name);
      series.set_rank(rank);
      for (int i = 1; i <= 3; ++i) {
        series.add_x(i);
        series.add_y(static_cast<float>(name[5] == 'l' ? 4 - i + rank : (7 - 2 * rank) * 1e9));
      }
    }
  }
  EXPECT_THAT(Text(), HasSubstr("loss of each rank over its own rows"));
  EXPECT_THAT(Text(), HasSubstr("    0          1    7.00 GB  7.00 GB"));
  EXPECT_THAT(Text(), HasSubstr("    1          2    5.00 GB  5.00 GB"));
  EXPECT_EQ(Key('l'), Next::kAsk);
  EXPECT_THAT(Text(), HasSubstr("The log is empty."));
  for (int i = 0; i < 100; ++i) snapshot_.log.push_back(fmt::format("line {:03}\x1b[31m", i));
  EXPECT_THAT(Text(), HasSubstr("line 099\\x1b[31m"));
  EXPECT_THAT(Text(), Not(HasSubstr("line 050")));
  (void)Key('g');
  EXPECT_THAT(Text(), HasSubstr("line 000"));
  (void)Key('G');
  EXPECT_THAT(Text(), HasSubstr("line 099"));
  EXPECT_EQ(Key('e'), Next::kAsk);
  v1::JobEvent& event = snapshot_.events.emplace_back();
  event.set_type("state");
  event.set_message("RUNNING on gpu-01");
  EXPECT_THAT(Text(), HasSubstr("RUNNING on gpu-01"));
}

TEST_F(ViewTest, AServerThatDoesNotAnswerIsNamedAndWhatWasSeenStays) {
  snapshot_.status = absl::UnavailableError("connection refused");
  EXPECT_THAT(Text(), HasSubstr("NO ANSWER"));
  EXPECT_THAT(Text(), HasSubstr("no answer since 22:13:20: connection refused"));
  EXPECT_THAT(Text(), HasSubstr("job-a"));
  snapshot_.status = absl::NotFoundError("no job is called job-x");
  EXPECT_THAT(Text(), HasSubstr("REFUSED"));
  EXPECT_THAT(Text(), HasSubstr("no job is called job-x"));
  snapshot_ = Snapshot();
  EXPECT_THAT(Text(), HasSubstr("connecting"));
}

TEST_F(ViewTest, HelpIsShownAndLeft) {
  (void)Key('?');
  EXPECT_THAT(Text(), HasSubstr("select a row"));
  EXPECT_EQ(Key('q'), Next::kDraw) << "any key leads back";
  EXPECT_EQ(Key('q'), Next::kQuit);
}

TEST(TopTest, WithoutATerminalOnePictureIsPrinted) {
  FakeServer server;
  server.jobs["job-a"] = Running("job-a", "first");
  server.jobs["job-b"] = MakeJob("job-b", v1::Job::SUCCEEDED);
  Outcome run = Sftctl(server, {"top"});
  ASSERT_EQ(run.code, kSucceeded) << run.err;
  EXPECT_THAT(run.out, HasSubstr("1 active and 1 ended jobs"));
  EXPECT_THAT(run.out, HasSubstr("job-a"));
  EXPECT_THAT(run.out, Not(HasSubstr("\x1b")));
  run = Sftctl(server, {"top", "--json"});
  ASSERT_EQ(run.code, kSucceeded) << run.err;
  const auto json = ParseJson(run.out);
  EXPECT_EQ(json["jobs"].size(), 2u);
  EXPECT_EQ(json["active"], 1);
  EXPECT_EQ(json["ended"], 1);
  EXPECT_TRUE(json["nodes"].is_array());
  ASSERT_EQ(Sftctl(server, {"top", "--page", "queue"}).code, kSucceeded);
  EXPECT_EQ(server.listed.back().order_by(), "submitted") << "the first in line are the oldest";
}

TEST(TopTest, OfAJobItsCurveIsPrinted) {
  FakeServer server;
  server.jobs["job-a"] = Running("job-a", "first");
  v1::CurveSeries& loss = *server.curve.add_series();
  loss.set_name("loss");
  loss.add_x(1);
  loss.add_y(0.1F);
  loss.add_x(2);
  loss.add_y(std::nanf(""));
  Outcome run = Sftctl(server, {"top", "job-a", "--once"});
  ASSERT_EQ(run.code, kSucceeded) << run.err;
  EXPECT_THAT(run.out, HasSubstr("first  job-a  RUNNING"));
  ASSERT_EQ(server.curves.size(), 1u);
  EXPECT_THAT(server.curves[0].values(), ElementsAre("loss", "val_loss"));
  run = Sftctl(server, {"top", "job-a", "--json"});
  EXPECT_EQ(ParseJson(run.out)["curves"][0]["y"].dump(), "[0.1,\"nan\"]");
  EXPECT_EQ(Sftctl(server, {"top", "job-x"}).code, kNotFound);
}

TEST(TopTest, WrongFlagsAreExplained) {
  FakeServer server;
  const auto refused = [&](const std::vector<std::string>& words, const std::string& part) {
    const Outcome run = Sftctl(server, words);
    EXPECT_EQ(run.code, kUsage);
    EXPECT_THAT(run.err, HasSubstr(part));
  };
  refused({"top", "--page", "log"}, "--page log is of a job: name it");
  refused({"top", "job-a", "--page", "nodes"}, "--page nodes is not of a job: leave out job-a");
  refused({"top", "--page", "gpus"}, "--page");
  refused({"top", "--interval", "fast"}, "--interval: a duration of 1s or more");
}

TEST(MetricsTest, RanksArePrintedBesideEachOther) {
  FakeServer server;
  server.jobs["job-a"] = Running("job-a", "first");
  for (const char* name : {"rank_loss", "rank_memory"}) {
    for (int rank = 0; rank < 2; ++rank) {
      v1::CurveSeries& series = *server.curve.add_series();
      series.set_name(name);
      series.set_rank(rank);
      series.add_x(7);
      series.add_y(static_cast<float>(name[5] == 'l' ? 0.5 + rank : 3e9));
    }
  }
  Outcome run = Sftctl(server, {"metrics", "job-a", "--ranks"});
  ASSERT_EQ(run.code, kSucceeded) << run.err;
  EXPECT_THAT(run.out, HasSubstr("0     7     0.5000  3.00 GB"));
  EXPECT_THAT(run.out, HasSubstr("1     7     1.5000  3.00 GB"));
  run = Sftctl(server, {"metrics", "job-a", "--ranks", "--json"});
  EXPECT_THAT(run.out, HasSubstr(R"({"type":"rank","rank":1,"step":7,"loss":1.5)"));
  EXPECT_EQ(Sftctl(server, {"metrics", "job-a", "--ranks", "--follow"}).code, kUsage);
  server.curve.Clear();
  EXPECT_THAT(Sftctl(server, {"metrics", "job-a", "--ranks"}).err,
              HasSubstr("no rank of job-a has told of its own loss"));
}

}  // namespace
}  // namespace sft::client::top
