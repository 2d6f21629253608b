// The site's search, without a worker or a fetch: a browser allows neither to a page that it opened as a file.
document.addEventListener("DOMContentLoaded", function () {  // the box stands below this script
  const input = document.getElementById("mkdocs-search-query");
  const list = document.getElementById("mkdocs-search-results");
  let ready = null;

  function load(name) {
    return new Promise((done, failed) => {
      const script = document.createElement("script");
      script.src = base_url + "/search/" + name;
      script.onload = done;
      script.onerror = failed;
      document.head.append(script);
    });
  }

  function prepare() {
    ready = ready || Promise.all([load("lunr.js"), load("index.js")]).then(() => {
      const documents = new Map(SITE_INDEX.docs.map((each) => [each.location, each]));
      const index = lunr(function () {
        this.field("title", { boost: 10 });
        this.field("text");
        this.ref("location");
        documents.forEach((each) => this.add(each));
      });
      return { documents, index };
    });
    return ready;
  }

  function show(found, documents) {
    list.replaceChildren(...found.slice(0, 30).map(({ ref }) => {
      const article = document.createElement("article");
      const heading = article.appendChild(document.createElement("h3"));
      const link = heading.appendChild(document.createElement("a"));
      link.href = base_url + "/" + ref;
      link.textContent = documents.get(ref).title;
      article.appendChild(document.createElement("p")).textContent = documents.get(ref).text.slice(0, 200);
      return article;
    }));
    if (!found.length) list.textContent = "No results found";
  }

  async function search() {
    const words = lunrWords(input.value);
    if (!words.length) return list.replaceChildren();
    const { documents, index } = await prepare();
    show(index.query((query) => words.forEach((word) => {
      query.term(word, { boost: 10 });
      query.term(word, { wildcard: lunr.Query.wildcard.TRAILING });
    })), documents);
  }

  function lunrWords(text) {
    return text.toLowerCase().split(/[\s-]+/).filter((word) => word.length > 1);
  }

  input.addEventListener("input", search);
  const asked = new URLSearchParams(location.search).get("q");
  if (asked) { input.value = asked; search(); }
});
