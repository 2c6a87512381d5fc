#include "common/spec/resolve.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "common/spec/hold_out.h"
#include "common/spec/mixture.h"
#include "tests/unit/common/spec/resolve_testing.h"

namespace sft::spec {
namespace {

using ::testing::HasSubstr;

TEST(ResolveTest, AMinimalFileGetsTheDocumentedDefaults) {
  const Resolution r = ResolveText(Minimal());
  ASSERT_TRUE(r.ok()) << Describe(r.problems);
  EXPECT_TRUE(r.warnings.empty()) << Describe(r.warnings);
  const JobSpec& s = r.spec;
  EXPECT_EQ(s.job.name, "job");
  EXPECT_EQ(s.job.kind, "sft");
  EXPECT_EQ(s.hyperparameters.n_epochs, 3);
  EXPECT_EQ(s.hyperparameters.learning_rate, 2e-5);
  EXPECT_EQ(s.hyperparameters.per_device_batch, 4);
  EXPECT_EQ(s.lora.r, 16);
  EXPECT_EQ(s.lora.alpha, 32);
  EXPECT_EQ(s.lora.target_modules, JobSpec().lora.target_modules);
  EXPECT_EQ(s.data.loss_on, LossOn::kAssistant);
  EXPECT_EQ(s.hyperparameters.seed, 42u);
}

TEST(ResolveTest, EveryValueSaysWhereItComesFrom) {
  const Resolution r =
      ResolveText(Minimal("[hyperparameters]\nlearning_rate = 1e-4\n"),
                  {Env("TRAIN_WARMUP_RATIO", "0.1"), Flag("data.max_examples", "8", "--examples"),
                   Set("lora.r", "8")});
  ASSERT_TRUE(r.ok()) << Describe(r.problems);
  EXPECT_EQ(OriginOf(r, "hyperparameters.learning_rate"), "job.toml:7");
  EXPECT_EQ(OriginOf(r, "hyperparameters.warmup_ratio"), "TRAIN_WARMUP_RATIO");
  EXPECT_EQ(OriginOf(r, "data.max_examples"), "--examples");
  EXPECT_EQ(OriginOf(r, "lora.r"), "--set");
  EXPECT_EQ(OriginOf(r, "lora.alpha"), "default");
  EXPECT_EQ(OriginOf(r, "compute.variant"), "derived: gpu_type and gpus_per_node");
  EXPECT_EQ(TextOf(r, "hyperparameters.learning_rate"), "0.0001");
}

TEST(ResolveTest, NamesOfColumnsAndRolesAreChecked) {
  const Resolution good = ResolveText(
      Minimal("[data]\ncolumns = [\"prompt=ask\", \"completion=a=b\"]\n"
              "roles = [\"user=customer\", \"user=guest\"]\non_long_rows = \"split\"\n"));
  ASSERT_TRUE(good.ok()) << Describe(good.problems);
  EXPECT_EQ(good.spec.data.columns, (std::vector<std::string>{"prompt=ask", "completion=a=b"}));
  EXPECT_EQ(good.spec.data.on_long_rows, LongRows::kSplit);
  EXPECT_EQ(good.spec.data.split_overlap, 64);
  const std::pair<const char*, const char*> cases[] = {
      {"columns = [\"ask\"]", "\"ask\" is not NAME=THEIRS with a name of messages"},
      {"columns = [\"prompt=\"]", "\"prompt=\" is not NAME=THEIRS"},
      {"columns = [\"question2=ask\"]", "\"question2=ask\" is not"},
      {"columns = [\"prompt=a\", \"prompt=b\"]", "gives a name for the second time"},
      {"roles = [\"human=customer\"]", "a name of system, developer, user, assistant, tool"},
      {"roles = [\"user=a\", \"assistant=a\"]", "gives a name for the second time"},
      {"on_long_rows = \"truncate\"", "truncate_right"},
      {"split_overlap = 0", "from 1"},
  };
  for (const auto& [text, problem] : cases) {
    const Resolution r = ResolveText(Minimal(std::string("[data]\n") + text + "\n"));
    EXPECT_NE(Describe(r.problems).find(problem), std::string::npos)
        << text << ": " << Describe(r.problems);
  }
}

TEST(ResolveTest, SeveralFilesAreTrainedOn) {
  const std::string head = "[job]\nmodel = \"m\"\n";
  const Resolution r =
      ResolveText(head +
                  "[data]\ntrain = [{path = \"a b.jsonl\", weight = 2.5}, \"c.parquet\",\n"
                  "  {path = \"node:/d.csv\", max_examples = 7, weight = 1}]\n[compute]\ngpu_type "
                  "= \"H100\"\n");
  ASSERT_TRUE(r.ok()) << Describe(r.problems);
  EXPECT_EQ(r.spec.job.data, "a b.jsonl");
  const auto parts = TrainParts(r.spec);
  ASSERT_TRUE(parts.ok());
  ASSERT_EQ(parts->size(), 3U);
  EXPECT_EQ((*parts)[0].path, "a b.jsonl");
  EXPECT_EQ((*parts)[0].weight, 2.5);
  EXPECT_EQ((*parts)[1].path, "c.parquet");
  EXPECT_EQ((*parts)[1].weight, 1);
  EXPECT_EQ((*parts)[2].max_examples, 7);
  const std::vector<NeededFile> files = NeededFiles(r);
  ASSERT_EQ(files.size(), 2U);
  EXPECT_EQ(files[0].key, "job.data");
  EXPECT_EQ(files[0].line, 4);
  EXPECT_EQ(files[1].key, "data.mixture[1]");
  EXPECT_EQ(files[1].path, "c.parquet");
  EXPECT_EQ(PartOfKey("data.mixture[1]"), 1U);
  EXPECT_EQ(PartOfKey("data.val"), std::string::npos);
  const std::pair<const char*, const char*> cases[] = {
      {"train = [{path = \"a\", weight = 0}]", "weight is how often each row is seen"},
      {"train = [{path = \"a\", max_examples = 0}]", "max_examples is a number of rows"},
      {"train = [{weight = 1}]", "a list of tables"},
      {"train = [\"node:a\"]", "must give an absolute path"},
      {"train = [\"a\"]\nmax_examples = 5", "give max_examples to those of data.train"},
      {"train = [\"a\", \"b\"]\nval_split = \"5 rows\"", "a share is held out"},
  };
  for (const auto& [text, problem] : cases) {
    const Resolution bad = ResolveText(head + "[data]\n" + text + "\n");
    EXPECT_NE(Describe(bad.problems).find(problem), std::string::npos)
        << text << ": " << Describe(bad.problems);
    if (std::string_view(text).find("max_examples = 5") == std::string_view::npos) continue;
    EXPECT_EQ(Describe(bad.problems).find("job.data:0: is missing"), std::string::npos)
        << Describe(bad.problems);
  }
  const Resolution both = ResolveText(head + "data = \"x\"\n[data]\ntrain = [\"a\"]\n");
  EXPECT_NE(Describe(both.problems).find("names one file with rows already"), std::string::npos)
      << Describe(both.problems);
}

TEST(ResolveTest, APartOfTheRowsIsHeldOut) {
  const std::pair<const char*, const char*> good[] = {{"val_split = 0.05", "0.05"},
                                                      {"val_split = \"500 rows\"", "500 rows"},
                                                      {"val_set_size = 200", "200"}};
  for (const auto& [text, value] : good) {
    const Resolution r = ResolveText(Minimal(std::string("[data]\n") + text + "\n"));
    ASSERT_TRUE(r.ok()) << Describe(r.problems);
    EXPECT_EQ(r.spec.data.val_split, value);
    EXPECT_TRUE(r.spec.training.validation.enabled);
    EXPECT_EQ(OriginOf(r, "training.validation.enabled"), "derived: data.val_split");
  }
  EXPECT_FALSE(ResolveText(Minimal("[data]\nval_split = 0\n")).spec.training.validation.enabled);
  EXPECT_EQ(ParseHoldOut("0.5")->share, 0.5);
  EXPECT_EQ(ParseHoldOut("1 row")->rows, 1);
  for (const char* text : {"1.0", "-1", "0 rows", "rows", "5 %", "nan", "0.1 rows"}) {
    EXPECT_FALSE(ParseHoldOut(text).ok()) << text;
  }
}

TEST(ResolveTest, AllProblemsAreReportedAtOnceInLineOrder) {
  const Resolution r = ResolveText(
      "[job]\nmodle = \"m\"\n[compute]\ngpu_type = \"H100\"\ngpu_count = 0\n[hyperparameters]\n"
      "learning_rate = \"fast\"\nwarmup_ratio = 2.0\n[trainign]\nmode = \"lora\"\n");
  EXPECT_EQ(Describe(r.problems),
            "job.model:0: is missing; set it in the file, or with --model MODEL\n"
            "job.data:0: is missing; set it in the file, or with --dataset PATH\n"
            "job.modle:2: unknown key; did you mean job.model?\n"
            "compute.gpu_count:5: must be a whole number from 1 to 65536, but is 0\n"
            "hyperparameters.learning_rate:7: must be a number above 0 and at most 10, but is "
            "\"fast\"\n"
            "hyperparameters.warmup_ratio:8: must be a number from 0 to 1, but is 2\n"
            "trainign:9: unknown table; did you mean training?\n");
}

// Each unknown key is compared with all names: a file full of them must not keep a server busy.
TEST(ResolveTest, AHundredUnknownKeysAreComparedAndAThousandReported) {
  std::string tables = "[lora]\n";
  for (int i = 0; i < 8000; ++i) tables += "rr" + std::to_string(i) + " = 1\n";
  const Resolution r = ResolveText(Minimal(tables));
  ASSERT_EQ(r.problems.size(), 1001u);
  EXPECT_THAT(r.problems[0].message, HasSubstr("did you mean lora.r?"));
  EXPECT_THAT(r.problems[999].message, HasSubstr("`sftctl explain` lists all"));
  EXPECT_EQ(std::count_if(r.problems.begin(), r.problems.end(),
                          [](const Problem& problem) {
                            return problem.message == "7000 more problems are left out";
                          }),
            1);
}

TEST(ResolveTest, BrokenTomlIsOneProblemWithItsLine) {
  const Resolution r = ResolveText("[job]\nmodel = \"m\"\ndata = \n");
  ASSERT_EQ(r.problems.size(), 1u) << Describe(r.problems);
  EXPECT_EQ(r.problems[0].line, 3);
  EXPECT_THAT(r.problems[0].message, HasSubstr("is not TOML"));
}

TEST(ResolveTest, AnEmptyFileLacksModelDataAndGpus) {
  EXPECT_EQ(ResolveText("").problems.size(), 3u);
}

TEST(ResolveTest, OverridesMaySupplyEverything) {
  const Resolution r =
      ResolveText("", {Flag("job.model", "m", "--model"), Flag("job.data", "d", "--dataset"),
                       Env("SYNTH_GPU_TYPE", "CPU-2x")});
  ASSERT_TRUE(r.ok()) << Describe(r.problems);
  EXPECT_EQ(r.spec.compute.variant, "CPU-2x");
}

TEST(ResolveTest, TheSameKeyTwiceMustAgree) {
  const Resolution r = ResolveText(
      Minimal("[hyperparameters]\nlearning_rate = 1e-4\n[train]\nlearning_rate = 2e-4\n"));
  ASSERT_EQ(r.problems.size(), 1u);
  EXPECT_EQ(r.problems[0].line, 9);
  EXPECT_THAT(r.problems[0].message, HasSubstr("given twice: 0.0002 here and 0.0001 in line 7"));
  const Resolution same = ResolveText(
      Minimal("[hyperparameters]\nlearning_rate = 1e-4\n[train]\nlearning_rate = 1e-4\n"));
  EXPECT_TRUE(same.ok());
  EXPECT_EQ(Describe(same.warnings),
            "hyperparameters.learning_rate:7: is given twice, here and in line 9, with the same "
            "value; keep one\n");
}

struct Unknown {
  std::string_view text;
  std::string_view suggestion;
};

TEST(ResolveTest, AnUnknownKeySuggestsTheNearest) {
  for (const Unknown& u :
       {Unknown{"[hyperparameters]\nlearnig_rate = 1", "hyperparameters.learning_rate"},
        Unknown{"[training]\nlearning_rate = 1", "hyperparameters.learning_rate"},
        Unknown{"[hyperparameters]\nbf16 = true", "hyperparameters.parallelism.bf16"},
        Unknown{"[lora]\nrank = 8", ""},
        Unknown{"[lora]\ntarget_module = \"q\"", "lora.target_modules"},
        Unknown{"[hyperparameters]\nper_device_batchsize = 1", "hyperparameters.per_device_batch"},
        Unknown{"[hyperparameters.paralelism]\nfsdp = true", "hyperparameters.parallelism"},
        Unknown{"lerning_rate = 1", "hyperparameters.learning_rate"}}) {
    // Bare keys go before the first table.
    const bool bare = !u.text.starts_with('[');
    const Resolution r =
        ResolveText(bare ? std::string(u.text) + "\n" + Minimal() : Minimal(u.text));
    ASSERT_EQ(r.problems.size(), 1u) << u.text << "\n" << Describe(r.problems);
    if (u.suggestion.empty()) continue;
    EXPECT_THAT(r.problems[0].message,
                HasSubstr("did you mean " + std::string(u.suggestion) + "?"));
  }
}

TEST(ResolveTest, ValuesOfTheWrongTypeAreNamed) {
  EXPECT_EQ(Describe(ResolveText(Minimal("[training]\nuse_qlora = \"yes\"\nmode = 3\n"
                                         "[lora]\nr = 1.5\ntarget_modules = [1, 2]\n"
                                         "[data]\npacking = 1\nval = 2020-01-01\n"
                                         "[hyperparameters]\nseed = { a = 1 }\n"))
                         .problems),
            "training.use_qlora:7: must be true or false, but is \"yes\" (a string)\n"
            "training.mode:8: must be \"lora\", \"full_finetune\" or \"qlora\", but is 3\n"
            "lora.r:10: must be a whole number from 1 to 8192, but is 1.5\n"
            "lora.target_modules:11: must be a list of strings, but is a list of other things than "
            "strings\n"
            "data.packing:13: must be true or false, but is 1 (a whole number)\n"
            "data.val:14: must be a string, but is a date\n"
            "hyperparameters.seed:16: must be a whole number, at least 0, but is a table\n");
}

TEST(ResolveTest, IgnoredKeysOfOtherToolsWarn) {
  const Resolution r = ResolveText(
      Minimal("[train]\ndataloader_num_workers = 4\nddp_find_unused_parameters = false\n"));
  ASSERT_TRUE(r.ok()) << Describe(r.problems);
  ASSERT_EQ(r.warnings.size(), 2u);
  EXPECT_EQ(r.warnings[0].key, "train.dataloader_num_workers");
  EXPECT_THAT(r.warnings[0].message, HasSubstr("has no effect"));
}

TEST(ResolveTest, AJobFileOfAnotherToolIsAcceptedUnchanged) {
  const Resolution r = ResolveText(R"(
[model]
name = "google/gemma-3-27b-it"
max_seq_len = 2048
[tuning]
mode = "qlora"
backend = "bnb"
[tuning.lora]
r = 32
alpha = 64
dropout = 0.1
[train]
batch_size = 8
grad_accum = 4
bf16 = true
gradient_checkpointing = true
ddp_find_unused_parameters = false
ddp_broadcast_buffers = false
ddp_bucket_cap_mb = 200
dataloader_num_workers = 4
dataloader_pin_memory = true
predict_with_generate = false
generation_num_beams = 1
generation_max_new_tokens = 64
eval_strategy = "steps"
eval_steps = 200
eval_do_concat_batches = false
eval_accumulation_steps = 8
)",
                                   {Env("NUM_GPUS", "2"), Env("SYNTH_GPU_TYPE", "H100"),
                                    Flag("job.data", "d.jsonl", "--dataset")});
  ASSERT_TRUE(r.ok()) << Describe(r.problems);
  const JobSpec& s = r.spec;
  EXPECT_EQ(s.job.model, "google/gemma-3-27b-it");
  EXPECT_EQ(s.hyperparameters.sequence_length, 2048);
  EXPECT_TRUE(s.qlora());
  EXPECT_EQ(s.lora.r, 32);
  EXPECT_EQ(s.lora.alpha, 64);
  EXPECT_EQ(s.lora.dropout, 0.1);
  EXPECT_EQ(s.hyperparameters.per_device_batch, 8);
  EXPECT_EQ(s.hyperparameters.gradient_accumulation_steps, 4);
  EXPECT_EQ(s.hyperparameters.global_batch, 64);
  EXPECT_EQ(s.parallelism.compute_type, ComputeType::kBf16);
  EXPECT_TRUE(s.parallelism.activation_checkpointing);
  EXPECT_EQ(s.parallelism.ddp_bucket_cap_mb, 200);
  EXPECT_EQ(s.training.validation.eval_steps, 200);
  EXPECT_FALSE(s.training.validation.enabled);
}

TEST(ResolveTest, NodePathsAreAbsolute) {
  const Resolution r = ResolveText(
      "[job]\nmodel = \"m\"\ndata = \"node:rows.jsonl\"\n[compute]\nvariant = \"H100-1x\"\n");
  ASSERT_EQ(r.problems.size(), 1u);
  EXPECT_EQ(r.problems[0].line, 3);
  EXPECT_THAT(r.problems[0].message, HasSubstr("absolute path"));
}

TEST(NeededFilesTest, NamesTheSubmittersFilesAsWritten) {
  const Resolution r = ResolveText(Minimal("[data]\nval = \"../v.jsonl\""));
  ASSERT_TRUE(r.ok());
  const std::vector<NeededFile> files = NeededFiles(r);
  ASSERT_EQ(files.size(), 2u);
  EXPECT_EQ(files[0].key, "job.data");
  EXPECT_EQ(files[0].path, "d.jsonl");
  EXPECT_EQ(files[1].key, "data.val");
  EXPECT_EQ(files[1].path, "../v.jsonl");
}

TEST(NeededFilesTest, SaysWhichPathsWereTypedOutsideTheFile) {
  const Resolution r =
      ResolveText(Minimal("[data]\nval = \"v.jsonl\""), {Flag("job.data", "x", "--dataset")});
  ASSERT_TRUE(r.ok());
  const std::vector<NeededFile> files = NeededFiles(r);
  ASSERT_EQ(files.size(), 2u);
  EXPECT_EQ(files[0].path, "x");
  EXPECT_TRUE(files[0].from_override);
  EXPECT_FALSE(files[1].from_override);
}

TEST(NeededFilesTest, NodePathsAndUnusedRowsAreNotUploaded) {
  const Resolution r =
      ResolveText(Minimal("[data]\nval = \"v.jsonl\"\n[training.validation]\nenabled = false"),
                  {Flag("job.data", "node:/data/rows.jsonl", "--dataset")});
  ASSERT_TRUE(r.ok()) << Describe(r.problems);
  EXPECT_TRUE(NeededFiles(r).empty());
  EXPECT_EQ(NodePath(r.spec.job.data), "/data/rows.jsonl");
  EXPECT_EQ(NodePath("v.jsonl"), "");
}

TEST(ResolveTest, AKeyInPlaceOfATableSaysSo) {
  EXPECT_NE(Describe(ResolveText("compute = 3\n").problems)
                .find("compute:1: must be a table ([compute] in TOML), but is a whole number\n"),
            std::string::npos);
  EXPECT_NE(Describe(ResolveText("[[compute]]\ngpu_type = \"H100\"\n").problems)
                .find("compute:1: must be a table ([compute] in TOML), but is a list of tables\n"),
            std::string::npos);
}

TEST(ResolveTest, AModelIsAnAbsolutePathOrAnId) {
  for (const char* bad : {"../../etc", "./m", "~/m", "a//b", "a/../b", "."}) {
    const Resolution r = ResolveText(Minimal(), {Set("job.model", bad)});
    ASSERT_EQ(r.problems.size(), 1u) << bad << Describe(r.problems);
    EXPECT_EQ(r.problems[0].key, "job.model");
    EXPECT_NE(r.problems[0].message.find("neither an absolute path"), std::string::npos);
  }
  for (const char* good : {"/models/m", "org/name", "SmolLM2-135M.v1", "m"}) {
    EXPECT_TRUE(ResolveText(Minimal(), {Set("job.model", good)}).ok()) << good;
  }
}

TEST(ResolveTest, NewRulesApplyOnlyToValuesNotAcceptedBefore) {
  const std::string text =
      "[job]\nname = \"a\u202eb\"\nmodel = \"org/m\"\ndata = \"rows.jsonl\"\n"
      "[compute]\nvariant = \"H100-4x\"\nnetwork_interface = \"a b\"\n"
      "[data]\nchat_template = \"{% if x %}\"\n[data.topology]\ntotal_gpus = 8\n"
      "[scheduling]\ntime_limit = 28800\nwarn_before = \"60\"\n";
  const Resolution now = Resolve(text, "job.toml", {});
  EXPECT_EQ(now.problems.size(), 6u) << Describe(now.problems);
  const Resolution then = Resolve(text, "job.toml", {}, {.taken_before = true});
  ASSERT_TRUE(then.ok()) << Describe(then.problems);
  EXPECT_EQ(then.spec.job.name, "a_b");
  EXPECT_EQ(then.spec.scheduling.time_limit, "28800s");
  EXPECT_EQ(then.spec.scheduling.warn_before, "60s");
  EXPECT_EQ(then.spec.compute.nodes, 2);
  EXPECT_EQ(then.spec.compute.network_interface, "a b");
  EXPECT_EQ(then.warnings.size(), 2u) << Describe(then.warnings);
  Override change = Set("compute.network_interface", "c d");
  EXPECT_EQ(Resolve(text, "job.toml", {change}, {.taken_before = true}).problems.size(), 1u);
  change.taken_before = true;
  EXPECT_TRUE(Resolve(text, "job.toml", {change}, {.taken_before = true}).ok());
  EXPECT_EQ(AsTakenNow("scheduling.time_limit", "8"), "8s");
  EXPECT_EQ(AsTakenNow("scheduling.time_limit", "8h"), "8h");
  EXPECT_EQ(AsTakenNow("no.key", "8"), "8");
}

TEST(ResolveTest, ALabelIsShortAndOnOneLine) {
  const auto problems = [](const std::string& name) {
    return Describe(ResolveText(Minimal(), {Set("job.name", name)}).problems);
  };
  EXPECT_EQ(problems(std::string(128, 'n')), "");
  EXPECT_NE(problems(std::string(129, 'n')).find("has 129 bytes; a label has at most 128"),
            std::string::npos);
  EXPECT_NE(problems("a\x1b[31mb").find("control character"), std::string::npos);
  EXPECT_NE(problems("a\nb").find("control character"), std::string::npos);
}

TEST(ResolveTest, TheFilesNameMakesALabelWhateverItIs) {
  EXPECT_EQ(Resolve(Minimal(), "a\tb.toml", {}).spec.job.name, "a_b");
  const Resolution r = Resolve(Minimal(), std::string(127, 'x') + "\xc3\xa9.toml", {});
  EXPECT_TRUE(r.ok()) << Describe(r.problems);
  EXPECT_EQ(r.spec.job.name, std::string(127, 'x'));
}

TEST(ResolveTest, AJobWithProblemsStillNamesItsFilesAndWhatIsKnown) {
  const Resolution r = ResolveText(Minimal("gpu_cout = 2\n"));
  ASSERT_FALSE(r.ok());
  EXPECT_EQ(r.spec.job.model, "m");
  EXPECT_EQ(r.spec.compute.gpu_type, "H100");
  const std::vector<NeededFile> files = NeededFiles(r);
  ASSERT_EQ(files.size(), 1u);
  EXPECT_EQ(files[0].path, "d.jsonl");
  EXPECT_EQ(files[0].line, 3);
}

TEST(ResolveTest, AnOverrideHasNoLineOfTheFile) {
  const Resolution r = ResolveText(Minimal(), {Flag("job.data", "e.jsonl", "--dataset")});
  ASSERT_EQ(NeededFiles(r).size(), 1u);
  EXPECT_EQ(NeededFiles(r)[0].line, 0);
  EXPECT_TRUE(NeededFiles(r)[0].from_override);
}

// Applies to any text that is shown in lists, messages or paths.
TEST(ResolveTest, ControlAndInvisibleCharactersAreRefused) {
  const std::pair<std::string, std::string> cases[] = {{"job.name", "nightly \\u202Elive"},
                                                       {"job.name", "a\\u0000b"},
                                                       {"job.data", "a\\u0000b.jsonl"},
                                                       {"job.data", "node:/data/a\\u001B[2J"},
                                                       {"job.model", "m\\u200B"},
                                                       {"job.output_dir", "a\\tb"},
                                                       {"data.val", "v\\u0007.jsonl"},
                                                       {"compute.gpu_type", "H100\\u2066"},
                                                       {"compute.network_interface", "eth0\\n"},
                                                       {"compute.variant", "H100\\u0000-1x"}};
  for (const auto& [key, text] : cases) {
    std::string file = "job.model = \"m\"\njob.data = \"d\"\ncompute.gpu_type = \"H100\"\n";
    const size_t at = file.find(key + " =");
    if (at != file.npos) file.erase(at, file.find('\n', at) + 1 - at);
    const Resolution r = ResolveText(file + key + " = \"" + text + "\"\n");
    ASSERT_FALSE(r.ok()) << key << " " << text;
    EXPECT_EQ(r.problems[0].key, key) << Describe(r.problems);
    EXPECT_GT(r.problems[0].line, 0);
    EXPECT_THAT(r.problems[0].message, HasSubstr("a control character or cannot be seen"));
  }
  EXPECT_TRUE(ResolveText(Minimal("[data]\nchat_template = \"\"\"a\n\tb\"\"\"\n")).ok());
  EXPECT_FALSE(ResolveText(Minimal("[data]\nchat_template = \"a\\u0000\"\n")).ok());
  EXPECT_FALSE(ResolveText(Minimal("[lora]\ntarget_modules = [\"q_proj\\u202E\"]\n")).ok());
  EXPECT_FALSE(ResolveText(Minimal(), {Set("job.name", "a\x1b[31m")}).ok());
  const Resolution named = Resolve(Minimal(), "/a/b\xe2\x80\xae\x01.toml", {});
  EXPECT_EQ(named.spec.job.name, "b__");
}

TEST(ResolveTest, ANetworkInterfaceIsAName) {
  const auto read = [](const std::string& text) {
    return ResolveText(Minimal("network_interface = \"" + text + "\"\n"));
  };
  for (const char* good :
       {"", "eth0", "eth", "bond0.100", "=eth0,=eth1", "^docker0,lo", "^=eth0"}) {
    EXPECT_TRUE(read(good).ok()) << good;
  }
  for (const char* bad : {"eth0; rm -rf /", "a b", "eth0,", ",eth0", "/dev/null", "^", "=",
                          "$(reboot)", "sixteen-letters-x", "NCCL_DEBUG=INFO"}) {
    const Resolution r = read(bad);
    ASSERT_EQ(r.problems.size(), 1u) << bad;
    EXPECT_EQ(r.problems[0].key, "compute.network_interface");
    EXPECT_THAT(r.problems[0].message, HasSubstr("is no network interface"));
  }
}

TEST(ResolveTest, APreflightIsMadeUnlessTheJobSaysNo) {
  EXPECT_TRUE(ResolveText(Minimal()).spec.compute.preflight);
  EXPECT_FALSE(ResolveText(Minimal("preflight = false\n")).spec.compute.preflight);
  EXPECT_FALSE(ResolveText(Minimal(), {Set("compute.preflight", "false")}).spec.compute.preflight);
}

TEST(ResolveTest, AListHasALimit) {
  std::string jobs = "job-aaaaaaaaaa";
  for (int i = 0; i < 100; ++i) jobs += ",job-aaaaaaaaaa";
  const Resolution after = ResolveText(Minimal(), {Set("scheduling.after", jobs)});
  ASSERT_EQ(after.problems.size(), 1u);
  EXPECT_THAT(after.problems[0].message, HasSubstr("has 101 items; at most 100 are taken"));
  std::string modules = "a";
  for (int i = 0; i < 1000; ++i) modules += ",a";
  EXPECT_FALSE(ResolveText(Minimal(), {Set("lora.target_modules", modules)}).ok());
}

}  // namespace
}  // namespace sft::spec
