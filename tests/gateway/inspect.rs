//! `mediagate inspect`: why an image is refused, or looks as it does.

use serde_json::Value;

use super::support::{files::Files, gateway, pictures};

async fn run(words: Vec<String>) -> String {
    let output = tokio::task::spawn_blocking(move || gateway::command().arg("inspect").args(words).output().unwrap());
    let output = output.await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

#[tokio::test]
async fn where_a_url_leads_and_why_it_is_refused_is_said() {
    let files = Files::start().await;
    let image = files.put("/a.png", pictures::png(1, 8, 6).0);
    let behind = files.redirect("/behind", "/a.png");
    let inside = files.redirect("/inside", "http://10.0.0.1/a.png");
    let missing = files.url("/missing.png");
    let inputs = [&behind, &inside, &missing, "http://169.254.169.254/latest/meta-data", "ftp://x/y"];
    let flags = files.allowed().to_vec();
    let text = run([words(&["--json"]), flags.clone(), words(&inputs)].concat()).await;
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), inputs.len());
    assert_eq!((&lines[0]["status"], &lines[0]["policy"]), (&"ok".into(), &"allowed".into()));
    assert_eq!(lines[0]["redirects"], serde_json::json!([image]));
    assert!(lines[0]["times_ms"]["read"].as_f64().unwrap() > 0.0);
    // The first hop may be reached, the second may not: both are shown.
    assert_eq!((&lines[1]["status"], &lines[1]["policy"]), (&"refused".into(), &"allowed".into()));
    assert_eq!(lines[1]["redirects"], serde_json::json!(["http://10.0.0.1/a.png"]));
    assert_eq!(lines[2]["code"], "media_origin_refused");
    assert_eq!((&lines[3]["status"], &lines[3]["policy"]), (&"refused".into(), &"refused".into()));
    assert_eq!(lines[4]["status"], "refused");

    let text = run([flags, words(&inputs)].concat()).await;
    for said in
        ["redirected to", "refused: nothing was dialled", "8 wide, 6 high", "content hash", "media_origin_refused"]
    {
        assert!(text.contains(said), "{said:?} is not in\n{text}");
    }
}

#[tokio::test]
async fn orientation_and_colours_are_told_and_the_pixels_can_be_looked_at() {
    let parent = tempfile::tempdir().unwrap();
    let images = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/images");
    let (turned, cmyk) = (format!("{images}/exif_6.jpg"), format!("{images}/cmyk.jpg"));
    let avif = format!("{images}/rgba.avif");
    let dir = parent.path().join("made/on/the/way");
    let out = dir.to_str().unwrap();
    let text = run(words(&["--json", "--png-out", out, &turned, &cmyk, &avif])).await;
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines[0]["orientation"], 6);
    assert_eq!((&lines[0]["stored_width"], &lines[0]["stored_height"]), (&lines[0]["height"], &lines[0]["width"]));
    assert!(lines[1]["conversion"].as_str().unwrap().contains("CMYK"));
    assert_eq!((&lines[2]["status"], &lines[2]["code"]), (&"ok".into(), &"not_decoded".into()));
    for (line, name) in lines.iter().zip(["1.png", "2.png"]) {
        let path = dir.join(name);
        assert_eq!(line["png"].as_str(), path.to_str());
        // The picture that was written is the picture that was hashed.
        let again = run(words(&["--json", path.to_str().unwrap()])).await;
        let again: Value = serde_json::from_str(&again).unwrap();
        assert_eq!(again["media_id"], line["media_id"]);
        assert_eq!(again["rgb_sha256"], line["rgb_sha256"]);
    }
    assert!(!dir.join("3.png").exists());
}
