// Opens pages of the console in Chromium: node check_pages.mjs TASKS.json. Prints what is wrong as a JSON array.
//
// TASKS has the address with the token, the paths to look at, and optionally a folder for screenshots. Each page is
// looked at in both colour schemes: errors on the browser's console and findings of axe count. Then a stream is used
// with the keyboard alone; or, of a console that reaches no segment store, its live events are looked at.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const tasks = JSON.parse(readFileSync(process.argv[2], "utf8"));
const { chromium } = createRequire(tasks.modules + "/")("playwright-core");
const axe = readFileSync(tasks.modules + "/axe-core/axe.min.js", "utf8");
const wrong = [];

function watch(page, place) {
  page.on("console", (message) => {
    if (message.type() === "error") wrong.push(`${place()}: console: ${message.text()}`);
  });
  page.on("pageerror", (error) => wrong.push(`${place()}: ${error}`));
}

async function findings(page, place) {
  await page.evaluate(axe);
  const found = await page.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }));
  for (const violation of found.violations) {
    for (const node of violation.nodes.slice(0, 3)) wrong.push(`${place}: axe ${violation.id}: ${node.html.slice(0, 200)} ${node.failureSummary}`);
  }
}

async function look(browser, scheme, width) {
  const context = await browser.newContext({ colorScheme: scheme, viewport: { width, height: 900 }, reducedMotion: "reduce" });
  const page = await context.newPage();
  let path = "";
  const place = () => `${path} ${scheme} ${width}`;
  watch(page, place);
  await page.goto(tasks.address);
  if (page.url().includes("token")) wrong.push("the token stays in the address");
  for (path of tasks.paths) {
    await page.goto(new URL(path, tasks.address).href);
    await page.waitForTimeout(tasks.settle_ms);
    const sideways = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
    if (sideways > 0) wrong.push(`${place()}: ${sideways} pixels wider than the window`);
    if (tasks.screenshots) {
      const name = path.replace(/\?.*/, "").replace(/\W+/g, "-").replace(/^-/, "") || "home";
      await page.screenshot({ path: `${tasks.screenshots}/${name}${path.includes("?") ? "-chosen" : ""}-${scheme}-${width}.png`, fullPage: true });
    }
    await findings(page, place());
  }
  await context.close();
}

async function useKeyboard(browser) {
  const page = await browser.newPage();
  watch(page, () => "keyboard");
  await page.goto(tasks.address);
  await page.goto(new URL(tasks.stream, tasks.address).href);
  await page.waitForTimeout(tasks.settle_ms);
  const inMap = () => page.evaluate(() => document.activeElement?.closest("#map svg a:not(.moment)")?.id ?? "");
  for (let presses = 0; presses < 60 && !(await inMap()); presses++) await page.keyboard.press("Tab");
  const first = await inMap();
  if (!first) return wrong.push("keyboard: Tab does not reach a segment");
  await page.keyboard.press("ArrowLeft");
  const second = await inMap();
  if (!second || second === first) wrong.push("keyboard: an arrow key does not move to another segment");
  await page.keyboard.press("Enter");
  await page.waitForURL(/segment=/);
  await page.waitForSelector("#live-status .position", { timeout: 30000 });
  await page.locator("#live-status button", { hasText: "Pause" }).press("Enter");
  await page.waitForSelector("#live-status strong");
  await page.locator("#live-status button", { hasText: "Resume" }).press("Enter");
  await page.waitForSelector("#live-status .position");
}

async function openInBackground(browser) {
  const page = await browser.newPage();
  watch(page, () => "background");
  await page.goto(tasks.address);
  await page.addInitScript(() => {
    window.isShown = false;
    Object.defineProperty(document, "hidden", { get: () => !window.isShown });
  });
  await page.goto(new URL(tasks.stream + "?from=earliest", tasks.address).href);
  await page.waitForTimeout(tasks.settle_ms);
  if (await page.locator("#live-status").count()) wrong.push("background: a hidden tab opens a reader");
  await page.evaluate(() => {
    window.isShown = true;
    document.dispatchEvent(new Event("visibilitychange"));
  });
  await page.waitForSelector("#live-status .position", { timeout: 30000 });
  await page.waitForSelector(".cut input");
}

async function readWithoutStores(browser) {
  const page = await browser.newPage();
  watch(page, () => "without stores");
  await page.goto(tasks.address);
  await page.goto(new URL(tasks.without_stores + "?from=earliest", tasks.address).href);
  await page.waitForSelector("#live-status .warning", { timeout: 30000 });
  const said = await page.locator("#live-status .warning").innerText();
  if (!said.includes("From S3")) wrong.push(`without stores: the page says ${said}`);
  await page.waitForSelector("#live-events li", { timeout: 30000 });
  const places = await page.locator("#live-events li a:first-child").allInnerTexts();
  const reached = {};
  for (const place of places) {
    const [segment, offset] = place.split(":");
    if (Number(offset) <= (reached[segment] ?? -1)) wrong.push(`without stores: ${place} is out of order`);
    reached[segment] = Number(offset);
  }
}

const browser = await chromium.launch({ executablePath: tasks.chromium, args: ["--no-sandbox", "--disable-gpu"] });
try {
  for (const scheme of ["light", "dark"]) {
    for (const width of tasks.widths) await look(browser, scheme, width);
  }
  if (tasks.stream) {
    await useKeyboard(browser);
    await openInBackground(browser);
  }
  if (tasks.without_stores) await readWithoutStores(browser);
} finally {
  await browser.close();
}
console.log(JSON.stringify(wrong));
